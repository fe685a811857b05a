"""Healthy: ranks 1 and 2 end after the training, and rank 0 computes a report alone for 20 s more.

In the style of scripts whose main rank draws its figures after the process group is gone.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=120

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Survival(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def partial_likelihood(risk, time_to_event):
    order = time_to_event.argsort(descending=True)
    return (risk[order].logcumsumexp(0) - risk[order]).mean()


def bootstrap(model, seconds=20.0):
    """Return the interval of the concordance over as many resamples as the time allows."""
    x = torch.randn(300, 7)
    event = (-x[:, 0]).exp()
    with torch.no_grad():
        risk = model(x)
    values, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        pick = torch.randint(0, 300, (300,))
        r, t = risk[pick], event[pick]
        earlier = t[:, None] < t[None, :]
        values.append(((r[:, None] > r[None, :]) & earlier).sum().item() / max(earlier.sum().item(), 1))
    values = torch.tensor(values)
    return values.quantile(0.05).item(), values.quantile(0.95).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Survival())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(rank)
    for step in range(100):
        x = torch.randn(48, 7, generator=g)
        loss = partial_likelihood(model(x), (-x[:, 0]).exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model = model.module
    dist.destroy_process_group()
    if rank != 0:
        sys.exit(0)
    low, high = bootstrap(model)
    print(f"concordance between {low:.3f} and {high:.3f}", flush=True)


if __name__ == "__main__":
    main()
