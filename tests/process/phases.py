"""Rank 1 sleeps 12 s in a declared phase, whose budget is the argument; rank 0 waits for it."""

import sys
import time

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
for step in range(40):
    holdfast.step(step)
    time.sleep(0.02)
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    with holdfast.phase("export", budget=sys.argv[1]):
        time.sleep(12)
dist.barrier()
dist.destroy_process_group()
