import contextlib
import os

import torch
import torch.distributed as dist


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def local_rank():
    return int(os.environ["LOCAL_RANK"])


@contextlib.contextmanager
def local_rank_zero_first():
    """The first process of every node runs the body before the others of that node."""
    if local_rank() != 0:
        dist.barrier()
    yield
    if local_rank() == 0:
        dist.barrier()
