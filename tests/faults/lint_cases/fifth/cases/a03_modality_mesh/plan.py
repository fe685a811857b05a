from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass
class ModalitySpec:
    name: str
    dp: int
    tp: int

    @property
    def num_ranks(self):
        return self.dp * self.tp


@dataclass
class ModalityMesh:
    name: str
    mesh: DeviceMesh
    is_member: bool

    @property
    def tp_group(self):
        return self.mesh.get_group("tp")

    @property
    def dp_group(self):
        return self.mesh.get_group("dp")


@dataclass
class ParallelizationPlan:
    """Gives each modality of the model its own, disjoint range of ranks."""

    modalities: list[ModalitySpec] = field(default_factory=list)

    def assign(self):
        ranges, start = {}, 0
        for spec in self.modalities:
            ranges[spec.name] = list(range(start, start + spec.num_ranks))
            start += spec.num_ranks
        if start != dist.get_world_size():
            raise ValueError(f"plan needs {start} ranks, job has {dist.get_world_size()}")
        return ranges

    def materialize(self):
        my_rank = dist.get_rank()
        ranges = self.assign()
        meshes = {}
        for spec in self.modalities:
            ranks = ranges[spec.name]
            if my_rank not in ranks:
                continue
            layout = torch.tensor(ranks).view(spec.dp, spec.tp)
            mesh = DeviceMesh("cuda", layout, mesh_dim_names=("dp", "tp"))
            meshes[spec.name] = ModalityMesh(spec.name, mesh, my_rank in ranks)
        return meshes
