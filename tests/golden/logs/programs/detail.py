"""Ranks call different collectives, under TORCH_DISTRIBUTED_DEBUG=DETAIL."""

import datetime as dt

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=6))
if dist.get_rank() == 1:
    dist.broadcast(torch.ones(4), 0)
else:
    dist.all_reduce(torch.ones(4))
dist.barrier()
