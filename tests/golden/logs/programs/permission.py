"""Rank 0 has no permission to write its results; the others have finished."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
if rank == 0:
    raise PermissionError(13, "Permission denied", "/results/run-7/output.json")
print(f"rank {rank} is done", flush=True)
