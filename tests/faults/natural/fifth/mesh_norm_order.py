"""The norm of the gradients is reduced over the rows first on some ranks and over the columns first on others, so two groups wait for each other.

Modelled on home-made gradient clipping over a two-dimensional mesh (order of groups sorted by local size).
"""
# case: processes=4 ending=hang causes=collective-order-inversion,collective-mismatch,rank-skips-collective,rank-missing-collective ranks=- framework=tensor-parallel

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(24, 48)
        self.down = nn.Linear(48, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(x + self.down(torch.relu(self.up(x))))


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def local_squares(model):
    """Return the squares of this rank's own gradients, sharded and replicated ones apart."""
    squares = {"tp": torch.zeros(1), "dp": torch.zeros(1)}
    for name, p in model.named_parameters():
        squares["dp" if name.startswith("head") else "tp"] += local(p.grad).square().sum()
    return squares


def clip(model, squares, mesh, limit=1.5):
    """Clip by the norm over all ranks; the smaller contribution is exchanged first."""
    for axis in sorted(squares, key=lambda axis: squares[axis].item()):  # GUILTY
        dist.all_reduce(squares[axis], group=mesh.get_group(axis))  # ALSO
    norm = (squares["tp"] + squares["dp"]).sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        local(p.grad).mul_(scale)
    return norm.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelize_module(MLP(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    g = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    for step in range(400):
        x = torch.randn(12, 24, generator=g)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        squares = local_squares(model)
        for p in model.parameters():
            dist.all_reduce(local(p.grad), group=mesh.get_group("dp"))
            local(p.grad).div_(2)
        norm = clip(model, squares, mesh)  # ALSO
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f} norm {norm:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
