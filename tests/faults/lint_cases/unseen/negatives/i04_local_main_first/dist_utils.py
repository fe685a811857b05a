import functools
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist


def env_int(*names, default=0):
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    return default


def local_rank():
    return env_int("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def is_distributed():
    return dist.is_available() and dist.is_initialized()


@contextmanager
def _goes_first(first: bool):
    if not is_distributed():
        yield
        return
    if not first:
        dist.barrier()
    try:
        yield
    finally:
        if first:
            dist.barrier()


def local_main_first():
    """The first process of each machine runs the body before its neighbours do."""
    return _goes_first(local_rank() == 0)


def cached_once_per_node(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        with local_main_first():
            return fn(*args, **kwargs)

    return wrapper


def setup(backend=None):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank())
    dist.init_process_group(backend or ("nccl" if cuda else "gloo"))
    return torch.device("cuda", local_rank()) if cuda else torch.device("cpu")
