"""The start script of rank 1 sets the port of another job."""

import datetime as dt
import os

import torch
import torch.distributed as dist

if os.environ["RANK"] == "1":
    os.environ["MASTER_PORT"] = "29533"
print(
    f"[rank {os.environ['RANK']}] joining {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    flush=True,
)
dist.init_process_group("gloo", timeout=dt.timedelta(seconds=8))
dist.all_reduce(torch.ones(4))
