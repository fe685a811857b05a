"""Rank 2 tokenizes its part for longer than the timeout of the others, with torch's INFO logs."""

import datetime as dt
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=8))
rank = dist.get_rank()
for step in range(20):
    if (rank, step) == (2, 10):
        time.sleep(25)
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 5 == 0:
        print(f"step {step} / 20 loss {3 / (step + 1):.4f}", flush=True)
dist.destroy_process_group()
