"""Rank 1 caches its whole data set in host memory, which is not as large."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    cache = torch.empty(1 << 50, dtype=torch.uint8)
dist.all_reduce(torch.ones(1))
