"""Rank 0 alone logs the norm of a tensor-parallel weight with DTensor.full_tensor(), which is an all-gather."""
# case: processes=4 ending=hang causes=rank-guarded-collective ranks=0 framework=tensor_parallel

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class FeedForward(nn.Module):
    def __init__(self, dim=32, hidden=128):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)))


class ToyModel(nn.Module):
    def __init__(self, n_layers=2):
        super().__init__()
        self.layers = nn.ModuleList([FeedForward() for _ in range(n_layers)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def log_weights(model, step):
    for name, p in model.named_parameters():
        print(f"step {step} {name} norm {p.full_tensor().norm().item():.4f}", flush=True)  # GUILTY


def main():
    dist.init_process_group("gloo")
    tp_mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = ToyModel()
    for layer in model.layers:
        plan = {"w1": ColwiseParallel(), "w2": RowwiseParallel()}
        parallelize_module(layer, tp_mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    for step in range(40):
        torch.manual_seed(step)  # the same input on all ranks
        x = torch.randn(8, 32)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 15 == 14 and tp_mesh.get_rank() == 0:  # ALSO
            log_weights(model, step)  # ALSO
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
