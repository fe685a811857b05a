"""Rank 1 has used up its training time and exits early."""

import datetime as dt
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=6))
for step in range(30):
    if (dist.get_rank(), step) == (1, 15):
        sys.exit(0)
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
