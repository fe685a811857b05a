"""One rank meets a scan with so many points that its matrix of distances cannot be allocated, and fails with MemoryError while the others go on.

Modelled on pairwise distances of unfiltered scans (a dense matrix where blocks were needed).
"""
# case: processes=3 ending=crash causes=python-exception-on-one-rank,host-oom-killed,oom-on-one-rank-then-timeout,exit-nonzero ranks=2 framework=ddp

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def scan(rank, step):
    rng = np.random.default_rng([rank, step])
    points = 220 if (rank, step) != (2, 40) else 12_000_000
    return rng.random((points, 2), dtype=np.float32)


def neighbours(points, radius=0.1):
    """Return the mean number of points near a point, and their spread."""
    distances = np.zeros((len(points), len(points)), dtype=np.float64)  # GUILTY
    for axis in range(points.shape[1]):
        column = points[:, axis].astype(np.float64)
        distances += (column[:, None] - column[None, :]) ** 2
    counts = (distances < radius**2).sum(1)
    return float(counts.mean()), float(counts.std())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(120):
        points = scan(rank, step)
        target = torch.tensor(neighbours(points))  # ALSO
        loss = nn.functional.mse_loss(model(torch.from_numpy(points[:200])).mean(0), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
