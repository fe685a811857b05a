import argparse
import glob
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class TextShards(IterableDataset):
    """Byte sequences out of the text files that belong to this process."""

    def __init__(self, pattern, length, rank, world_size):
        self.files = sorted(glob.glob(pattern))[rank::world_size]
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id :: info.num_workers]
        for path in files:
            with open(path, "rb") as handle:
                while True:
                    chunk = handle.read(self.length + 1)
                    if len(chunk) <= self.length:
                        break
                    yield torch.tensor(list(chunk))


class ByteLM(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        self.rnn = nn.LSTM(dim, dim, 2, batch_first=True)
        self.out = nn.Linear(dim, 256)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


class GradientDescentTrainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(args.seed)
        self.model = DDP(ByteLM(args.dim).to(self.device), device_ids=[self.device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)

    def any_worker_done(self, done):
        flag = torch.tensor(int(done), device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return flag.item() > 0

    def train_epoch(self, loader):
        total = torch.zeros(2, device=self.device)
        batches = iter(loader)
        while True:
            batch = next(batches, None)
            if self.any_worker_done(batch is None):
                break
            batch = batch.to(self.device)
            logits = self.model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            total[0] += loss.detach()
            total[1] += 1
        dist.all_reduce(total)
        return (total[0] / total[1].clamp(min=1)).item()

    def train(self):
        data = TextShards(self.args.data, self.args.length, dist.get_rank(), dist.get_world_size())
        loader = DataLoader(data, batch_size=self.args.batch_size, drop_last=True, num_workers=2)
        for epoch in range(self.args.epochs):
            loss = self.train_epoch(loader)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} training loss {loss:.4f}")
                torch.save(self.model.module.state_dict(), f"{self.args.prefix}_{epoch}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="corpus/*.txt")
    parser.add_argument("--prefix", default="bytelm")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=13370)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    GradientDescentTrainer(args).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
