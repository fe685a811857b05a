import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class Layout:
    """Ranks of one sp row work on the same video, rows work on different ones."""

    def __init__(self, sp):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (dist.get_world_size() // sp, sp), mesh_dim_names=("dp", "sp"))
        self.dp_rank = mesh.get_local_rank("dp")
        self.dp_size = mesh["dp"].size()
        self.sp_rank = mesh.get_local_rank("sp")
        self.sp_size = sp
        self.sp_group = mesh.get_group("sp")

    def split(self, x):
        return x.chunk(self.sp_size, dim=2)[self.sp_rank].contiguous()

    def merge(self, x):
        parts = [torch.empty_like(x) for _ in range(self.sp_size)]
        dist.all_gather(parts, x.contiguous(), group=self.sp_group)
        return torch.cat(parts, dim=2)
