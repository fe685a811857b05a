"""Thin layer over torch.distributed that also works in a single process."""
import os

import torch
import torch.distributed as dist


def initialize(backend="gloo"):
    if not dist.is_initialized():
        dist.init_process_group(backend)


def get_global_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))


def get_world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def all_reduce(tensor, op="SUM"):
    if get_world_size() == 1:
        return tensor
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))  # RELATED: hidden-collective
    return tensor


def barrier():
    if get_world_size() > 1:
        dist.barrier()


def total(value: float) -> float:
    return float(all_reduce(torch.tensor([float(value)], dtype=torch.float64)))
