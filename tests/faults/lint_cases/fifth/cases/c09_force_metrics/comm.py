import os

import torch
import torch.distributed as dist


def setup():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def is_master():
    return dist.get_rank() == 0


def all_reduce(value, device, average=False):
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    if average:
        tensor /= dist.get_world_size()
    return tensor.item()
