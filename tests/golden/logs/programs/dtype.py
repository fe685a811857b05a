"""Rank 1 reduces with another dtype."""

import datetime as dt

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=6))
kind = torch.float64 if dist.get_rank() == 1 else torch.float32
for _ in range(20):
    dist.all_reduce(torch.ones(1000, dtype=kind))
dist.barrier()
