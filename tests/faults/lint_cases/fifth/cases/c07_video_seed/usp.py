import os

import torch
import torch.distributed as dist


def init_usp():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    return torch.device("cuda", local_rank)


def split_frames(x):
    """This rank's share of the frames (dim 2)."""
    return x.chunk(dist.get_world_size(), dim=2)[dist.get_rank()].contiguous()


def merge_frames(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=2)
