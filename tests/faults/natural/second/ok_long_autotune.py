"""Healthy: before the first step all ranks measure kernel variants for about 18 s, without output and without collectives.

In the style of PyTorch's FSDP2 examples with an autotuning or compile phase in front.
"""
# case: processes=4 ending=well causes=- ranks=- framework=fsdp2 limit_s=90

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def autotune(dim, budget_s=18.0):
    """The fastest chunk size for the feed-forward layer on this processor."""
    x, w = torch.randn(256, dim), torch.randn(dim, 4 * dim)
    best, best_time = None, float("inf")
    start = time.perf_counter()
    while time.perf_counter() - start < budget_s:
        for chunk in (8, 16, 32, 64, 128, 256):
            t0 = time.perf_counter()
            for part in x.split(chunk):
                torch.relu(part @ w) @ w.t()
            elapsed = time.perf_counter() - t0
            if elapsed < best_time:
                best, best_time = chunk, elapsed
    return best


class Chunked(nn.Module):
    def __init__(self, dim, chunk):
        super().__init__()
        self.chunk = chunk
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + torch.cat([self.down(torch.relu(self.up(part))) for part in x.split(self.chunk)])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    chunk = torch.tensor([autotune(dim=128)])
    dist.all_reduce(chunk, op=dist.ReduceOp.MIN)

    torch.manual_seed(0)
    model = nn.Sequential(*(Chunked(128, int(chunk)) for _ in range(3)))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(1, 21):
        x = torch.randn(256, 128)
        loss = (model(x) - x.flip(0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
