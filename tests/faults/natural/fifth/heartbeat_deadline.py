"""A heartbeat thread ends its own process with status 0 when a step takes longer than its deadline, and the other ranks lose their peer.

Modelled on preemption and deadline helpers that call os._exit from a thread.
"""
# case: processes=3 ending=crash causes=rank-exits-early,peer-lost,group-left-at-exit,exit-nonzero,rank-killed ranks=1 framework=ddp

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Heartbeat(threading.Thread):
    """Leaves when the node has become slow, so that the scheduler can place the job elsewhere."""

    def __init__(self, deadline):
        super().__init__(daemon=True)
        self.deadline = deadline
        self.last = time.monotonic()

    def beat(self):
        self.last = time.monotonic()

    def run(self):
        while True:
            time.sleep(0.25)
            if time.monotonic() - self.last > self.deadline:
                os._exit(0)  # GUILTY


class Crop(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 5, stride=2)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def images(rank, step):
    g = torch.Generator().manual_seed(100 * rank + step)
    if rank == 1 and step == 30:
        time.sleep(14)  # ALSO
    return torch.randn(8, 3, 28, 28, generator=g), torch.randint(0, 10, (8,), generator=g)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Crop())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    heartbeat = Heartbeat(deadline=[30.0, 8.0, 30.0][rank])
    heartbeat.start()  # ALSO
    for step in range(200):
        x, y = images(rank, step)  # ALSO
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        heartbeat.beat()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
