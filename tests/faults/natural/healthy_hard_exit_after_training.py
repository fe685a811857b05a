"""Healthy: after training the script ends with os._exit(0), because the threads of a library would keep it alive."""
# case: processes=3 ending=well framework=ddp

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Visualizer:
    """A client with a thread that is not a daemon, and no way to stop it."""

    def __init__(self):
        self.points = []
        threading.Thread(target=self._push).start()

    def _push(self):
        while True:
            time.sleep(1)
            self.points = self.points[-100:]

    def scalar(self, value):
        self.points.append(value)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    visualizer = Visualizer()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(80):
        x = torch.randn(16, 16)
        loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        visualizer.scalar(loss.item())
    dist.barrier()
    if rank == 0:
        print(f"final loss {loss.item():.4f}")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
