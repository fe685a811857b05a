"""WORLD_SIZE is one more than the number of started processes."""

import datetime as dt
import os

import torch
import torch.distributed as dist

os.environ["WORLD_SIZE"] = "4"
print(f"[rank {os.environ['RANK']}] world size {os.environ['WORLD_SIZE']}", flush=True)
dist.init_process_group("gloo", timeout=dt.timedelta(seconds=8))
dist.all_reduce(torch.ones(4))
