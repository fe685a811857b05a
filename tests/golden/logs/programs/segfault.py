"""An extension on rank 1 reads from address 0."""

import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10):
    if (dist.get_rank(), step) == (1, 5):
        ctypes.string_at(0)
    dist.all_reduce(torch.ones(4))
