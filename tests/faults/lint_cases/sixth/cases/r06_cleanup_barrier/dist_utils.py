import os
from datetime import timedelta

import torch
import torch.distributed as dist


def setup(timeout_minutes=60):
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", timeout=timedelta(minutes=timeout_minutes))
    return torch.device("cuda", local_rank)


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def size():
    return dist.get_world_size() if dist.is_initialized() else 1


def print_rank_0(*args):
    if rank() == 0:
        print(*args, flush=True)


def mean(value, device):
    tensor = torch.tensor(float(value), device=device)
    dist.all_reduce(tensor)
    return tensor.item() / size()


def cleanup():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
