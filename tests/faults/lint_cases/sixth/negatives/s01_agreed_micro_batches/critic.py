import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from planner import plan


class Critic(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.value = nn.Linear(dim, 1)

    def forward(self, ids):
        return self.value(self.rnn(self.embed(ids))[0]).squeeze(-1)


class CriticWorker:
    def __init__(self, args, device):
        torch.manual_seed(args.seed)
        self.device = device
        self.args = args
        self.module = FSDP(Critic(args.vocab, args.dim).to(device), device_id=device)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=args.lr)

    def update(self, ids, lengths, returns):
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for index in plan(lengths.tolist(), self.args.budget, self.device):
            width = int(lengths[index].max())
            mask = torch.arange(width).unsqueeze(0) < lengths[index].unsqueeze(1)
            mask = mask.to(self.device)
            values = self.module(ids[index, :width].to(self.device))
            error = (values - returns[index, :width].to(self.device)) ** 2
            per_sample = (error * mask).sum(1) / mask.sum(1)
            loss = per_sample.sum() / len(lengths)
            loss.backward()
            total += loss.detach()
        norm = self.module.clip_grad_norm_(self.args.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
        return total


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("vocab", 1000), ("dim", 256), ("samples", 32), ("max-len", 512), ("budget", 4096),
                        ("steps", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--max-norm", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    worker = CriticWorker(args, device)
    rng = torch.Generator().manual_seed(args.seed + dist.get_rank())
    for step in range(args.steps):
        ids = torch.randint(args.vocab, (args.samples, args.max_len), generator=rng)
        lengths = torch.randint(4, args.max_len + 1, (args.samples,), generator=rng)
        returns = torch.randn(args.samples, args.max_len, generator=rng)
        loss = worker.update(ids, lengths, returns)
        if dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
