"""A class is missing in the label map of rank 1: every attempt fails at the same batch."""

import datetime as dt
import os

import torch
import torch.distributed as dist

CLASSES = {"cat": 0, "dog": 1}

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=20))
rank = dist.get_rank()
print(f"rank {rank}: attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
for step in range(30):
    name = "ferret" if (rank, step) == (1, 12) else "cat"
    label = torch.tensor(CLASSES[name])
    dist.all_reduce(label)
    if rank == 0 and step % 5 == 0:
        print(f"step {step} / 30 loss {3 / (step + 1):.4f}", flush=True)
dist.destroy_process_group()
