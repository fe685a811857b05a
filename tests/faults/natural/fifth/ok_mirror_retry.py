"""Healthy: rank 1 gets its shard at the sixth attempt; it prints the tracebacks of the failed ones and waits longer each time, about 25 s in all.

In the style of download helpers with exponential backoff.
"""
# case: processes=3 ending=well causes=- ranks=- framework=torch.distributed limit_s=120

import random
import socket
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def mirrors(rank):
    """Addresses of the mirrors of a shard; None is the copy on the local disk."""
    return [("127.0.0.1", closed_port()) for _ in range(5 if rank == 1 else 0)] + [None]


def fetch(rank, mirror):
    if mirror is not None:
        with socket.create_connection(mirror, timeout=3) as connection:
            return connection.recv(1 << 20)
    g = torch.Generator().manual_seed(rank)
    return torch.randn(256, 6, generator=g)


def fetch_shard(rank):
    delay = 0.75
    for attempt, mirror in enumerate(mirrors(rank), start=1):
        try:
            return fetch(rank, mirror)
        except OSError:
            print(f"rank {rank}: attempt {attempt} failed, next in {delay:.1f} s", flush=True)
            traceback.print_exc()
            time.sleep(delay + random.random() * 0.1)
            delay *= 2
    raise RuntimeError("no mirror has the shard")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = fetch_shard(rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(5):
        for x in shard.split(32):
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
