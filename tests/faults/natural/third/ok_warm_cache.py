"""Healthy: the first step of each rank takes long (an autotuner measures kernels, for a different time on each rank), later steps are fast.

In the style of a DDP script with an autotuned operator.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=90

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Autotuned(nn.Module):
    """Tries block sizes in the first forward pass and keeps the fastest one."""

    def __init__(self, dim, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, dim) / dim**0.5)
        self.seconds, self.block = seconds, None

    def run(self, x, block):
        return torch.cat([part @ self.weight for part in x.split(block)])

    def tune(self, x):
        best, start = None, time.monotonic()
        while time.monotonic() - start < self.seconds:
            for block in (1, 4, 16, 64):
                t = time.perf_counter()
                self.run(x, block)
                t = time.perf_counter() - t
                best = min(best or (t, block), (t, block))
                time.sleep(0.2)  # let the processor cool down between measurements
        return best[1]

    def forward(self, x):
        if self.block is None:
            with torch.no_grad():
                self.block = self.tune(x)
        return self.run(x, self.block)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 64), Autotuned(64, seconds=(4.0, 22.0, 9.0)[rank % 3]), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = time.monotonic()
    for step in range(60):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} after {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()  # frees the model before its group: in the other order, torch itself may hang (PROC013)
    dist.destroy_process_group()
