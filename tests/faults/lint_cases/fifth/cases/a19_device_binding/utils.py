import os

import torch
import torch.distributed as dist


def suppress_output(rank):
    import builtins

    original = builtins.print

    def rank_print(*args, **kwargs):
        if kwargs.pop("force", False) or rank == 0:
            original(*args, **kwargs)

    builtins.print = rank_print


def init_distributed():
    """Initialise the process group and pick the device of this process."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    if world_size > 1:
        dist.init_process_group(backend="nccl", init_method="env://", world_size=world_size, rank=rank)
    torch.cuda.set_device(rank)
    device = torch.device(f"cuda:{rank}")
    if world_size > 1:
        warmup = torch.ones(1, device=device)
        dist.all_reduce(warmup)
        torch.cuda.synchronize(device)
    suppress_output(rank)
    return device
