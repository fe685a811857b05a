"""Rank 1 stores all its batches, under a limit on its address space (``ulimit -v``)."""

import resource

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
seen = []
if rank == 1:
    used = 1024 * int(open("/proc/self/status").read().split("VmSize:")[1].split()[0])  # noqa: PTH123, SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))
for step in range(40):
    if rank == 1:
        seen.append(bytearray(1 << 24))
    dist.all_reduce(torch.ones(4))
    if step % 5 == 0:
        print(f"step {step} loss {3 / (step + 1):.4f}", flush=True)
dist.destroy_process_group()
