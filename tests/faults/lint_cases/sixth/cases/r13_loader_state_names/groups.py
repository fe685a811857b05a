from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass
class Groups:
    mesh: DeviceMesh
    data: dist.ProcessGroup
    replicate: dist.ProcessGroup
    shard: dist.ProcessGroup


def build_groups(shard_size):
    """Lays the world out as (replicate, shard), shard being the fast dimension."""
    world = dist.get_world_size()
    if world % shard_size:
        raise ValueError(f"world size {world} is no multiple of {shard_size}")
    mesh = init_device_mesh("cuda", (world // shard_size, shard_size), mesh_dim_names=("replicate", "shard"))
    return Groups(mesh=mesh, data=dist.group.WORLD, replicate=mesh.get_group("replicate"), shard=mesh.get_group("shard"))
