import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class Layout:
    def __init__(self, tp):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        dp = dist.get_world_size() // tp
        mesh = init_device_mesh("cuda", (dp, tp), mesh_dim_names=("dp", "tp"))
        self.dp_group, self.tp_group = mesh.get_group("dp"), mesh.get_group("tp")
        self.dp_rank, self.tp_rank = mesh.get_local_rank("dp"), mesh.get_local_rank("tp")
        self.dp_size, self.tp_size = dp, tp


def job_seed(seed):
    """Without a seed rank 0 takes one from the clock, for all."""
    value = torch.tensor([int(time.time()) if seed is None else seed], device="cuda")
    dist.broadcast(value, src=0)
    return int(value.item())
