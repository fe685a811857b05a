"""Healthy: the first step takes 15 s on all ranks, because kernels are tuned first."""
# case: processes=3 ending=well framework=ddp

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TUNING_S = 15


class TunedLinear(nn.Linear):
    """Tries block sizes in its first forward pass and keeps the fastest."""

    block = 0

    def tune(self, x):
        fastest = float("inf")
        until = time.monotonic() + TUNING_S
        while time.monotonic() < until:
            for block in (8, 16, 32):
                began = time.perf_counter()
                for part in x.split(block):
                    nn.functional.linear(part, self.weight, self.bias)
                took = time.perf_counter() - began
                if took < fastest:
                    fastest, self.block = took, block

    def forward(self, x):
        if not self.block:
            self.tune(x.detach())
        return torch.cat([super(TunedLinear, self).forward(part) for part in x.split(self.block)])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Sequential(TunedLinear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(50):
        x = torch.randn(64, 64)
        loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
