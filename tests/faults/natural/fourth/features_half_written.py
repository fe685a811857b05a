"""Rank 0 writes the features in place; another rank loads the file as soon as it exists, before it is complete.

Modelled on pytorch/pytorch#68320 (several workers and one cached file) and "sleep until the file exists" scripts.
"""
# case: processes=2 ending=crash causes=model-download-race,python-exception-on-one-rank,checkpoint-corrupt,checkpoint-half-written ranks=1 framework=ddp

import os
import pickle
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FOLDER = os.path.join(tempfile.gettempdir(), f"ogbn-{os.environ['MASTER_PORT']}")
NODES, WIDTH = 4000, 16


def propagate(features, edges, hops=3):
    """Average over neighbours, as SGC does before training."""
    for _ in range(hops):
        summed = torch.zeros_like(features).index_add_(0, edges[1], features[edges[0]])
        degree = torch.bincount(edges[1], minlength=len(features)).clamp(min=1)
        features = summed / degree[:, None]
    return features


def compute_features(path):
    g = torch.Generator().manual_seed(0)
    features = torch.randn(NODES, WIDTH, generator=g)
    edges = torch.randint(0, NODES, (2, 6 * NODES), generator=g)
    features = propagate(features, edges)
    blocks = features.numpy().reshape(20, -1, WIDTH)
    with open(path, "wb") as f:  # ALSO
        for block in blocks:
            pickle.dump(block, f)
            f.flush()
            time.sleep(0.15)  # a home directory on NFS


def load_features(path):
    """Read all blocks."""
    with open(path, "rb") as f:
        blocks = [torch.from_numpy(pickle.load(f)) for _ in range(20)]  # GUILTY
    return torch.cat(blocks)


def prepare(rank):
    path = os.path.join(FOLDER, "sgc-3hop.pkl")
    if rank == 0:
        os.makedirs(FOLDER, exist_ok=True)
        compute_features(path)
    while not os.path.exists(path):  # ALSO
        time.sleep(0.2)
    return load_features(path)  # ALSO


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    features = prepare(rank)  # ALSO
    labels = (features[:, :4].argmax(-1)) % 4
    torch.manual_seed(0)
    model = DDP(nn.Linear(WIDTH, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    mine = torch.arange(rank, NODES, world)
    for step in range(60):
        chosen = mine[torch.randperm(len(mine))[:128]]
        loss = nn.functional.cross_entropy(model(features[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
