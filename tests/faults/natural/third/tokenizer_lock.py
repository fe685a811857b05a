"""The barrier is inside the block that holds the file lock: the rank that has the lock waits in the barrier, the others wait for the lock.

In the style of a script that builds a vocabulary once per host, under a lock of the filelock package.
"""
# case: processes=3 ending=hang causes=rank-missing-collective,file-io-blocked ranks=- framework=ddp

import argparse
import json
import os
from collections import Counter

import torch
import torch.distributed as dist
from filelock import FileLock
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TEXT = "the quick brown fox jumps over the lazy dog while a small model learns to copy what it reads".split()


def build_vocabulary(path, size):
    counts = Counter()
    for i in range(200_000):
        counts[TEXT[i * 7919 % len(TEXT)]] += 1
    with open(path, "w") as f:
        json.dump({word: i for i, (word, _) in enumerate(counts.most_common(size))}, f)


def load_vocabulary(folder, size=64):
    path = os.path.join(folder, "vocabulary.json")
    with FileLock(path + ".lock"):  # GUILTY
        if not os.path.exists(path):
            build_vocabulary(path, size)
        # nobody may read the file before it is complete
        dist.barrier()  # ALSO
    with open(path) as f:
        return json.load(f)


class Copier(nn.Module):
    def __init__(self, words, dim=32):
        super().__init__()
        self.embed, self.out = nn.Embedding(words, dim), nn.Linear(dim, words)

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(args.cache, exist_ok=True)
    vocabulary = load_vocabulary(args.cache)  # ALSO
    torch.manual_seed(rank)
    model = DDP(Copier(len(vocabulary)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(args.steps):
        tokens = torch.randint(0, len(vocabulary), (16, 12))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
