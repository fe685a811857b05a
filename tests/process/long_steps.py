"""A healthy job with long steps: in each, rank 1 sleeps 2 s at one line and the others wait."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10_000):
    if dist.get_rank() == 1:
        time.sleep(2)
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 0:
        os.write(1, f"step {step}\n".encode())
