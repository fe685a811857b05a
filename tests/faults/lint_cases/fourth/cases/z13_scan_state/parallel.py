import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class ParallelState:
    """dp x cp x tp mesh of the job."""

    def __init__(self, cp, tp):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        dp = dist.get_world_size() // (cp * tp)
        self.mesh = init_device_mesh("cuda", (dp, cp, tp), mesh_dim_names=("dp", "cp", "tp"))

    @property
    def cp_group(self):
        return self.mesh.get_group("cp")

    @property
    def cp_rank(self):
        return self.mesh.get_local_rank("cp")

    @property
    def cp_size(self):
        return self.mesh["cp"].size()
