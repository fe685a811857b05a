"""Only rank 0 makes the checkpoint folder, after writing the run's card; the other ranks save their shards before it exists.

Modelled on karpathy/nanochat#336 ("Fix race condition in save_checkpoint for non-zero ranks").
"""
# case: processes=4 ending=crash causes=python-exception-all-ranks,python-exception-on-one-rank,checkpoint-folder-unusable ranks=1,2,3 framework=fsdp2

import hashlib
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BASE = os.path.join(tempfile.gettempdir(), f"chat-{os.environ['MASTER_PORT']}")


class Chat(nn.Module):
    def __init__(self, vocab=160, dim=48, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x) * 1.0


def run_card(config):
    """Facts about the run, with a fingerprint of the (large) tokenizer merges."""
    merges = b"".join(i.to_bytes(4, "little") for i in range(4_000_000))
    return {**config, "tokenizer": hashlib.sha256(merges).hexdigest()}


def save_checkpoint(folder, step, model, optimizer, config, rank):
    if rank == 0:
        card = run_card(config)
        os.makedirs(folder, exist_ok=True)  # GUILTY
        with open(os.path.join(folder, f"meta_{step:06d}.json"), "w") as f:
            json.dump(card, f)
    shard = {"model": {n: p.to_local() for n, p in model.named_parameters()}, "optim": optimizer.state_dict()}
    torch.save(shard, os.path.join(folder, f"shard_{step:06d}_rank{rank:d}.pt"))  # ALSO


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = {"steps": 40, "lr": 1e-3, "world_size": world}
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Chat()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])

    torch.manual_seed(rank)
    for step in range(1, config["steps"] + 1):
        ids = torch.randint(0, 160, (4, 17))
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:05d} | loss {loss.item():.6f}", flush=True)

    save_checkpoint(os.path.join(BASE, "d2"), config["steps"], model, optimizer, config, rank)
    dist.barrier()
    if rank == 0:
        print("checkpoint written", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
