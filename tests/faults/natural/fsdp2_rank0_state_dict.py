"""Rank 0 alone collects the full FSDP2 state dict for a checkpoint, which needs an all-gather of all ranks."""
# case: processes=4 ending=hang causes=rank-guarded-collective ranks=0 framework=fsdp2

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self, dim=32, n_layers=2, vocab=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Block(dim) for _ in range(n_layers)])
        self.output = nn.Linear(dim, vocab)

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(h)


def save_checkpoint(model, path):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state_dict = get_model_state_dict(model, options=options)  # GUILTY
    torch.save(state_dict, path)
    print(f"saved {len(state_dict)} tensors to {path}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(rank)
    for step in range(20):
        tokens = torch.randint(0, 64, (4, 17))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optim.step()
        optim.zero_grad()

    if rank == 0:  # ALSO
        save_checkpoint(model, os.path.join(tempfile.mkdtemp(), "model.pt"))  # ALSO
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
