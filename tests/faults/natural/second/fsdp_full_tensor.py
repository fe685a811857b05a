"""Rank 0 alone calls full_tensor() on sharded parameters to export them; each call is an all-gather that the others never enter.

Modelled on areal-project/AReaL#187 ("full_tensor() should happen in all rank").
"""
# case: processes=4 ending=hang causes=rank-guarded-collective,collective-mismatch,mismatched-operation,rank-missing-collective ranks=0 framework=fsdp2

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Transformerish(nn.Module):
    def __init__(self, vocab=200, dim=64, layers=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim) for _ in range(layers))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x)
        return self.out(x) * 1.0


def export_weights(model, path):
    """One ordinary state dict, for the inference server."""
    weights = {}
    for name, param in model.named_parameters():
        weights[name] = param.full_tensor() if isinstance(param, DTensor) else param.detach()  # GUILTY
    torch.save(weights, path)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = Transformerish()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)

    for step in range(1, 31):
        ids = torch.randint(0, 200, (4, 33))
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    if rank == 0:
        path = os.path.join(tempfile.gettempdir(), f"export-{os.environ['MASTER_PORT']}.pt")
        export_weights(model, path)  # ALSO
        print(f"exported to {path}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
