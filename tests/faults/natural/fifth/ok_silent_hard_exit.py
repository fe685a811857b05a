"""Healthy: the job prints nothing, never destroys its group, leaves a thread behind and ends with os._exit(0) on every rank.

In the style of scripts that avoid slow interpreter shutdown.
"""
# case: processes=4 ending=well causes=- ranks=- framework=torch.distributed limit_s=120

import os
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn


def trim(folder, keep=2):
    """Remove old snapshots now and then."""
    while True:
        names = sorted(os.listdir(folder))
        for name in names[:-keep]:
            os.remove(os.path.join(folder, name))
        time.sleep(0.5)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = tempfile.mkdtemp()
    threading.Thread(target=trim, args=(folder,)).start()
    torch.manual_seed(0)
    model = nn.GRU(5, 16, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(80):
        out, _ = model(torch.randn(4, 12, 5, generator=g))
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        for p, grad in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad.copy_(grad.view_as(p) / world)
        optimizer.step()
        if step % 10 == 0:
            torch.save(model.state_dict(), os.path.join(folder, f"{step:04d}.pt"))
        time.sleep(0.12)
    dist.barrier()
    time.sleep(1.5 * rank)
    os._exit(0)


if __name__ == "__main__":
    main()
