"""Rank 1 never enters the second collective (of the evaluation), in any generation."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import holdfast

dist.init_process_group("gloo")
holdfast.comm.all_reduce(torch.ones(1), chunk=None)
with holdfast.phase("evaluation", budget="2s"):
    if dist.get_rank() == 1:
        time.sleep(60)
    holdfast.comm.all_reduce(torch.ones(1 << 16), chunk=None)
