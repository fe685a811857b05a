import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class Mesh:
    def __init__(self, tensor_size):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        replicas = dist.get_world_size() // tensor_size
        mesh = init_device_mesh("cuda", (replicas, tensor_size), mesh_dim_names=("replica", "tensor"))
        self.tensor_group = mesh.get_group("tensor")
        self.replica_group = mesh.get_group("replica")
        self.tensor_rank = mesh.get_local_rank("tensor")
        self.replica_rank = mesh.get_local_rank("replica")
        self.replicas = replicas

    def tensor_root(self):
        return dist.get_process_group_ranks(self.tensor_group)[0]

    def share(self, tensor):
        """Give all ranks of a replica the tensor of its first rank."""
        dist.broadcast(tensor, src=self.tensor_root(), group=self.tensor_group)
        return tensor

    def share_object(self, thing):
        box = [thing if self.tensor_rank == 0 else None]
        dist.broadcast_object_list(box, src=self.tensor_root(), group=self.tensor_group)
        return box[0]
