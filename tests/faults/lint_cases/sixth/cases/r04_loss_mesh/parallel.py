import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


@dataclass
class ParallelDims:
    dp: int
    cp: int

    def build_mesh(self):
        world = int(os.environ["WORLD_SIZE"])
        if self.dp * self.cp != world:
            raise ValueError(f"dp({self.dp}) * cp({self.cp}) != WORLD_SIZE({world})")
        mesh = init_device_mesh("cuda", (self.dp, self.cp), mesh_dim_names=("dp", "cp"))
        mesh[("dp", "cp")]._flatten(mesh_dim_name="dp_cp")
        return mesh

    @property
    def dp_enabled(self):
        return self.dp > 1

    @property
    def cp_enabled(self):
        return self.cp > 1


def _reduce(value, op, mesh):
    tensor = torch.tensor(float(value), device="cuda")
    dist.all_reduce(tensor, op=op, group=mesh.get_group())
    return tensor.item()


def dist_mean(value, mesh):
    return _reduce(value, dist.ReduceOp.SUM, mesh) / mesh.size()


def dist_max(value, mesh):
    return _reduce(value, dist.ReduceOp.MAX, mesh)
