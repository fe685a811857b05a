import torch
import torch.distributed as dist
from torch import nn


class ColumnLinear(nn.Module):
    def __init__(self, dim, out, group):
        super().__init__()
        self.group = group
        self.linear = nn.Linear(dim, out // dist.get_world_size(group))

    def forward(self, x):
        local = self.linear(x).contiguous()
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, local, group=self.group)
        parts[dist.get_rank(self.group)] = local
        return torch.cat(parts, dim=-1)


def build_tower(name, mesh):
    dims = {"vision": 1024, "language": 1536}
    dim = dims[name]
    return nn.Sequential(nn.LayerNorm(dim), ColumnLinear(dim, dim, mesh.tp_group), nn.GELU())
