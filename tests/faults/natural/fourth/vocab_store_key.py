"""Rank 0 finds the vocabulary in the cache and returns early, without setting the store key for which the other ranks wait.

Modelled on scripts that share a path through the TCPStore instead of a barrier (pytorch/pytorch#68320: one process prepares a file).
"""
# case: processes=3 ending=hang causes=store-wait,rank-missing-collective,rank-guarded-collective,stalled-outside-collectives ranks=0,1,2 framework=torch.distributed

import collections
import json
import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CACHE = os.path.join(tempfile.gettempdir(), f"charlm-{os.environ['MASTER_PORT']}")
TEXT = "the quick brown fox jumps over the lazy dog while seven wizards quietly mix jugs of liquor " * 40


def previous_run():
    """The user's run of yesterday has left its vocabulary in the cache."""
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "vocab.json"), "w") as f:
        json.dump({char: i for i, char in enumerate(sorted(set(TEXT)))}, f)


def build_vocab(path):
    counts = collections.Counter(TEXT)
    vocab = {char: i for i, char in enumerate(sorted(counts))}
    with open(path, "w") as f:
        json.dump(vocab, f)
    return vocab


def prepare_vocab(rank, store):
    """Let rank 0 build the vocabulary once; the others read it when its path is in the store."""
    path = os.path.join(CACHE, "vocab.json")
    if rank == 0:
        if os.path.exists(path):  # ALSO
            with open(path) as f:
                return json.load(f)  # GUILTY
        vocab = build_vocab(path)
        store.set("path", path)
        return vocab
    store.wait(["path"], timedelta(minutes=30))  # ALSO
    with open(store.get("path").decode()) as f:
        return json.load(f)


class CharLM(nn.Module):
    def __init__(self, size, dim=32):
        super().__init__()
        self.embed = nn.Embedding(size, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, size)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        previous_run()
    store = dist.PrefixStore("vocab", dist.distributed_c10d._get_default_store())
    dist.barrier()
    vocab = prepare_vocab(rank, store)  # ALSO
    ids = torch.tensor([vocab[char] for char in TEXT])
    torch.manual_seed(0)
    model = DDP(CharLM(len(vocab)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(60):
        start = (rank + world * step) * 24 % (len(ids) - 25)
        x, y = ids[start : start + 24][None], ids[start + 1 : start + 25]
        loss = nn.functional.cross_entropy(model(x)[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
