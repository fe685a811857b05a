"""Rank 2 hangs while it prepares a batch; the others wait in an all_gather of FSDP2 parameters."""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the process group exists, which FSDP's own import would keep alive
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, STUCK_AT = 60, 30


def tokenize(step: int, rank: int) -> torch.Tensor:
    if step == STUCK_AT and rank == 2 and not HEALTHY:
        time.sleep(10**6)  # GUILTY
    return torch.randn(32, 256)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = tokenize(step, rank)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
