"""Rank 1 destroys each process group before its model, whose reducer then holds the last reference."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv  # disables the fault
GROUPS = 400  # usually one of the first 20 hangs


def trained(group: dist.ProcessGroup) -> DistributedDataParallel:
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.01
    )
    model(torch.randn(8, 64)).sum().backward()
    return model


def main(rank: int) -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(64))
    for _ in range(4 if HEALTHY else GROUPS):
        group = dist.new_group()
        model = trained(group)
        if rank == 1 and not HEALTHY:
            dist.destroy_process_group(group)
            del group
            del model  # GUILTY
        else:
            del model
            time.sleep(0.05)
            dist.destroy_process_group(group)
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(dist.get_rank())
