"""Small helpers around torch.distributed shared by the fine-tuning scripts."""
import functools
import logging
import os

import torch
import torch.distributed as dist


def global_rank() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    return global_rank() == 0


def main_process_only(fn):
    """Run ``fn`` on the main process; every other process gets ``None`` back."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if is_main():  # RELATED: guard
            return fn(*args, **kwargs)
        return None

    return wrapper


def mean_over_ranks(value: torch.Tensor) -> torch.Tensor:
    if world_size() == 1:
        return value
    value = value.clone()
    dist.all_reduce(value)
    return value / world_size()


class RankZeroLogger(logging.LoggerAdapter):
    @main_process_only
    def log(self, level, msg, *args, **kwargs):
        super().log(level, msg, *args, **kwargs)


def get_logger(name: str) -> RankZeroLogger:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return RankZeroLogger(logging.getLogger(name), {})
