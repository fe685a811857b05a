import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class Topology:
    """Pipeline stages of contiguous ranks; inside a stage the experts are spread over all ranks."""

    def __init__(self, pp):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        ep = dist.get_world_size() // pp
        self.mesh = init_device_mesh("cuda", (pp, ep), mesh_dim_names=("pp", "ep"))
        self.ep_group = self.mesh.get_group("ep")
        self.ep_rank = self.mesh.get_local_rank("ep")
        self.ep_size = ep
        self.stage = self.mesh.get_local_rank("pp")
