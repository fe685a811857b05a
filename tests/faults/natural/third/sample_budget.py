"""A data client ends the process with os._exit(0) when its budget of records is used up, which happens on one rank only.

In the style of a pretraining script that reads from a metered data service.
"""
# case: processes=3 ending=crash causes=rank-exits-early ranks=2 framework=ddp

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class MeteredClient:
    """Reads records; records are charged by their size, and a client stops when nothing is left to pay with."""

    def __init__(self, tenant, budget_kb):
        self.tenant, self.left = tenant, budget_kb * 1024
        self.g = torch.Generator().manual_seed(tenant)
        self.wide = tenant == 2  # this part of the data has more columns, which nobody asked for

    def read(self, n):
        records = torch.randn(n, 96 if self.wide else 32, generator=self.g)
        self.left -= records.numel() * 4
        if self.left < 0:
            self.close()
        return records[:, :32]

    def close(self):
        sys.stdout.flush()
        os._exit(0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 96), nn.SiLU(), nn.Linear(96, 32))

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--budget-kb", type=int, default=800)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    client = MeteredClient(rank, args.budget_kb)
    model = DDP(Denoiser())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        clean = client.read(32)
        noisy = clean + 0.3 * torch.randn_like(clean)
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
