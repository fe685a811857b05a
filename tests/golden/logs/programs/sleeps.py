"""Rank 1 waits for a licence; the others time out in the all-reduce."""

import datetime as dt
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=6))
for step in range(20):
    if (dist.get_rank(), step) == (1, 12):
        time.sleep(15)
    dist.all_reduce(torch.ones(4))
