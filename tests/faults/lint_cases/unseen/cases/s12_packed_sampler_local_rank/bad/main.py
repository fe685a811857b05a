"""Train a draft head on packed hidden states.

    torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=... main.py
"""
import argparse
import logging
import os
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from sampling import PackedBatchSampler

logger = logging.getLogger("drafter")


class Workers(NamedTuple):
    local_rank: int
    rank: int
    world_size: int
    device: torch.device


def setup_workers() -> Workers:
    local_rank = int(os.environ.get("LOCAL_RANK", 0))  # RELATED: taint-source
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        device, backend = torch.device("cuda", local_rank), "nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend)
    return Workers(local_rank, dist.get_rank(), dist.get_world_size(), device)


class HiddenStates(Dataset):
    def __init__(self, documents, dim):
        g = torch.Generator().manual_seed(5)
        self.lengths = torch.randint(4, 30, (documents,), generator=g).tolist()
        self.dim = dim

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        h = torch.randn(self.lengths[i], self.dim, generator=g)
        return h, h.roll(-1, 0)


def collate(items):
    xs, ys = zip(*items)
    return torch.cat(xs), torch.cat(ys)


class DraftHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, h):
        return h + self.net(h)


def setup_dataloader(dataset, budget, shard, num_shards):
    sampler = PackedBatchSampler(dataset.lengths, budget, num_replicas=num_shards, rank=shard)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)


class Trainer:
    def __init__(self, model, loader, workers: Workers, lr):
        self.workers, self.loader = workers, loader
        model = model.to(workers.device)
        ids = [workers.local_rank] if workers.device.type == "cuda" else None
        self.model = DistributedDataParallel(model, device_ids=ids)
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)

    def train_epoch(self, epoch):
        self.loader.batch_sampler.set_epoch(epoch)
        total = torch.zeros(2, device=self.workers.device)
        for x, y in self.loader:
            x, y = x.to(self.workers.device), y.to(self.workers.device)
            loss = nn.functional.smooth_l1_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += torch.stack([loss.detach() * len(x), torch.tensor(float(len(x)), device=x.device)])
        dist.all_reduce(total)
        return (total[0] / total[1]).item(), int(total[1].item())

    def run(self, epochs):
        for epoch in range(epochs):
            loss, tokens = self.train_epoch(epoch)
            if self.workers.rank == 0:
                logger.info("epoch %d: loss %.4f over %d tokens", epoch, loss, tokens)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--documents", type=int, default=48)
    ap.add_argument("--dim", type=int, default=16)
    ap.add_argument("--budget", type=int, default=96)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    logging.basicConfig(level=logging.INFO)
    workers = setup_workers()
    torch.manual_seed(0)
    dataset = HiddenStates(args.documents, args.dim)
    loader = setup_dataloader(dataset, args.budget, workers.local_rank, workers.world_size)  # EXPECT: local-rank-as-global
    Trainer(DraftHead(args.dim), loader, workers, args.lr).run(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
