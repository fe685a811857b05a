"""Gradient norms are reduced over the model group and over all ranks, in an order that differs between ranks."""
# case: processes=4 ending=hang causes=collective-order-inversion ranks=0,1,2,3 framework=device_mesh

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh


class ParallelMLP(nn.Module):
    """The hidden layer is split over the model group."""

    def __init__(self, dim, tp_size):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim // tp_size)
        self.down = nn.Linear(4 * dim // tp_size, dim, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def reduce_gradients(model, group):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)


def norm_over(group, value):
    dist.all_reduce(value, group=group)  # GUILTY
    return value


def log_norms(model, mesh):
    squares = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
    if mesh.get_local_rank("tp") == 0:
        # this rank prints, so it needs the norm of its model group first
        shard = norm_over(mesh.get_group("tp"), squares.clone())  # ALSO
        total = norm_over(dist.group.WORLD, squares.clone())  # ALSO
    else:
        total = norm_over(dist.group.WORLD, squares.clone())  # ALSO
        shard = norm_over(mesh.get_group("tp"), squares.clone())  # ALSO
    return {"model group": shard.sqrt().item(), "all": total.sqrt().item()}


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(mesh.get_local_rank("tp"))
    model = ParallelMLP(16, mesh["tp"].size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        torch.manual_seed(100 * step + mesh.get_local_rank("dp"))
        x = torch.randn(8, 16)
        y = model(x)
        dist.all_reduce(y.data, group=mesh.get_group("tp"))
        (y - x).square().mean().backward()
        reduce_gradients(model, mesh.get_group("dp"))
        if step % 20 == 19:
            norms = log_norms(model, mesh)  # ALSO
            if dist.get_rank() == 0:
                print(f"step {step} {norms}")
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
