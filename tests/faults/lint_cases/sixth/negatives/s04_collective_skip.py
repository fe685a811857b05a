import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("train")


def all_ranks_agree(flag, device):
    vote = torch.tensor(int(flag), device=device)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


class Trainer:
    max_skips = 20

    def __init__(self, args, device):
        self.args, self.device = args, device
        net = nn.Sequential(nn.Linear(args.features, 512), nn.Tanh(), nn.Linear(512, args.features))
        self.model = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.skipped = 0

    def _loss(self, x):
        noise = torch.randn_like(x)
        sigma = torch.rand(x.size(0), 1, device=x.device).exp()
        return F.mse_loss(self.model(x + sigma * noise) / sigma, x / sigma)

    def train_epoch(self, loader, epoch):
        loader.sampler.set_epoch(epoch)
        for step, (x,) in enumerate(loader):
            loss = self._loss(x.to(self.device))
            if not all_ranks_agree(torch.isfinite(loss), self.device):
                self.skipped += 1
                if self.skipped > self.max_skips:
                    raise RuntimeError(f"{self.skipped} batches skipped")
                self.optimizer.zero_grad()
                continue
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % 100 == 0 and dist.get_rank() == 0:
                log.info("epoch %d step %d loss %.4f skipped %d", epoch, step, loss.item(), self.skipped)

    def save(self, path):
        if dist.get_rank() == 0:
            torch.save({"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
        dist.barrier()


def run(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(args.seed + dist.get_rank())
    data = TensorDataset(torch.load(args.data, map_location="cpu"))
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data, seed=args.seed), drop_last=True)
    trainer = Trainer(args, torch.device("cuda", local_rank))
    for epoch in range(args.epochs):
        trainer.train_epoch(loader, epoch)
        trainer.save(args.output)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--output", default="denoiser.pt")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    try:
        run(args)
    except Exception:
        log.exception("rank %s failed", os.environ.get("RANK"))
        raise
    else:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
