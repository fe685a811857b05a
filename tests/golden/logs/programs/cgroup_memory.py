"""Rank 2 exceeds the limit of its memory cgroup, and the kernel kills it."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

GROUP = Path("/sys/fs/cgroup/memory/step_0_task_2")


def confine() -> None:
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(600 << 20))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 2:
    confine()
cache = []
for step in range(60):
    if rank == 2:
        cache.append(torch.ones(16 << 18))
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {3 / (step + 1):.4f}", flush=True)
dist.destroy_process_group()
