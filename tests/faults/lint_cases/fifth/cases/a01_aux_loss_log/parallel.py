import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def initialize(pp_size):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dp_size = dist.get_world_size() // pp_size
    mesh = init_device_mesh("cuda", (dp_size, pp_size), mesh_dim_names=("dp", "pp"))
    return SimpleNamespace(
        pp_group=mesh.get_group("pp"),
        dp_group=mesh.get_group("dp"),
        pp_rank=mesh.get_local_rank("pp"),
        dp_rank=mesh.get_local_rank("dp"),
        pp_size=pp_size,
        is_last_stage=mesh.get_local_rank("pp") == pp_size - 1,
    )
