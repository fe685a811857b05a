"""Healthy: FSDP2 training that ends without destroy_process_group, as in many scripts."""
# case: processes=3 ending=well framework=fsdp2

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class MLP(nn.Module):
    def __init__(self, dim=48, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = MLP()
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optim = torch.optim.Adam(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
for step in range(40):
    x = torch.randn(8, 48)
    loss = (model(x) - x.flip(1)).square().mean()
    loss.backward()
    optim.step()
    optim.zero_grad()
    if step % 10 == 0:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}")
