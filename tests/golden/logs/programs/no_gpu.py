"""A script for GPUs runs on a machine without GPUs or with a CPU-only torch."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
