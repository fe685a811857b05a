import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class Context:
    """dp x cp layout; the ranks of one cp group work on the same video."""

    def __init__(self, cp_size, seed):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (dist.get_world_size() // cp_size, cp_size), mesh_dim_names=("dp", "cp"))
        self.cp_group = mesh.get_group("cp")
        self.cp_rank = mesh.get_local_rank("cp")
        self.cp_size = cp_size
        self.dp_rank = mesh.get_local_rank("dp")
        self.dp_size = mesh["dp"].size()
        torch.manual_seed(seed + dist.get_rank())
        self.generator = torch.Generator("cuda").manual_seed(seed + self.dp_rank)

    def split(self, x, dim):
        return x.chunk(self.cp_size, dim=dim)[self.cp_rank]

    def join(self, x, dim):
        parts = [torch.empty_like(x) for _ in range(self.cp_size)]
        dist.all_gather(parts, x.contiguous(), group=self.cp_group)
        return torch.cat(parts, dim=dim)
