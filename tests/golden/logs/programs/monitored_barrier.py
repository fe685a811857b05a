"""Rank 1 never enters a monitored barrier."""

import datetime as dt
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(9)
else:
    dist.monitored_barrier(timeout=dt.timedelta(seconds=4))
