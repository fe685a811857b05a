"""Helpers for code that runs under DDP and in a single process alike."""
import os
from functools import wraps

import torch.distributed as dist


def ddp_init():
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")


def ddp_barrier():
    """Lets all processes meet here; does nothing without DDP."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()  # RELATED: hidden-collective


def if_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0


def main_process_only(function):
    """Decorator: the function runs in the main process; the others get None."""

    @wraps(function)
    def main_proc_wrapped_func(*args, **kwargs):
        if if_main_process():  # RELATED: guard
            return function(*args, **kwargs)
        return None

    return main_proc_wrapped_func


def run_on_main(func, args=(), kwargs=None, post_func=None):
    """Runs func in the main process, then post_func in all of them."""
    if if_main_process():
        func(*args, **(kwargs or {}))
    ddp_barrier()
    if post_func is not None:
        post_func()
    ddp_barrier()
