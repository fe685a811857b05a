"""Healthy: rank 2 searches for its fastest convolution setting for about 20 s at full load in the first step, while the others wait in the reduction.

In the style of autotuning on the first batch (each rank tunes for its own shapes; two of them find the result in a table).
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=120

import itertools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

KNOWN = {24: (4, 1), 32: (8, 1)}


def timed(size, groups, stride):
    conv = nn.Conv2d(16, 16, 3, stride=stride, groups=groups, padding=1)
    x = torch.randn(4, 16, size, size)
    start = time.perf_counter()
    with torch.no_grad():
        for _ in range(5):
            conv(x)
    return time.perf_counter() - start


def search(size, budget=20.0):
    """Time all settings again and again, and return the one with the lowest sum."""
    if size in KNOWN:
        return KNOWN[size]
    settings = list(itertools.product((1, 2, 4, 8), (1,)))
    sums = dict.fromkeys(settings, 0.0)
    end = time.monotonic() + budget
    while time.monotonic() < end:
        for setting in settings:
            sums[setting] += timed(size, *setting)
    return min(sums, key=sums.get)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv2d(1, 16, 3, padding=1)
        self.mid = nn.Conv2d(16, 16, 3, padding=1)
        self.out = nn.Conv2d(16, 1, 3, padding=1)
        self.setting = None

    def forward(self, x):
        if self.setting is None:
            self.setting = search(x.size(-1))
        return self.out(torch.relu(self.mid(torch.relu(self.inp(x)))))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    size = [24, 32, 28][rank]
    model = DDP(Denoiser())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(40):
        clean = torch.randn(2, 1, size, size)
        loss = nn.functional.mse_loss(model(clean + 0.1 * torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    print(f"rank {rank} used {model.module.setting}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
