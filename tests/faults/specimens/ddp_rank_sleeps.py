"""Rank 2 hangs while it prepares a batch; the others wait in the all_reduce started by DDP's C++ reducer."""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the process group exists, which DDP's own import would keep alive
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv  # disables the fault
STEPS, STUCK_AT = 60, 30


def tokenize(step: int, rank: int) -> torch.Tensor:
    if step == STUCK_AT and rank == 2 and not HEALTHY:
        time.sleep(10**6)  # GUILTY
    return torch.randn(32, 512)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = tokenize(step, rank)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    del model, optimizer  # before the group: torch's destructors can deadlock otherwise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
