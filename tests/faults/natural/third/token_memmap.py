"""A thread of rank 0 writes the token file anew while all ranks have it mapped; the file is cut to zero and reading the mapping gives SIGBUS.

In the style of nanoGPT's memory-mapped token files, with data that are refreshed during training.
"""
# case: processes=2 ending=crash causes=segfault-in-worker ranks=- framework=ddp

import argparse
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = 128


def tokenize(path, seed, tokens=3_000_000):
    """Write the file piece by piece, as a tokenizer delivers the tokens."""
    rng = np.random.default_rng(seed)
    with open(path, "wb") as f:
        for _ in range(15):
            rng.integers(0, VOCAB, tokens // 15, dtype=np.uint16).tofile(f)
            f.flush()
            time.sleep(0.1)


class TokenFile:
    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")

    def get_batch(self, batch_size, block_size):
        ix = np.random.randint(0, len(self.data) - block_size - 1, batch_size)
        rows = np.stack([self.data[i : i + block_size + 1] for i in ix]).astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)

    def forward(self, idx, targets):
        return nn.functional.cross_entropy(self.out(self.table(idx)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=300)
    parser.add_argument("--refresh-every", type=int, default=50)
    parser.add_argument("--path", default="train.bin")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    np.random.seed(rank)
    torch.manual_seed(0)
    if rank == 0:
        tokenize(args.path, seed=0)
    dist.barrier()
    tokens = TokenFile(args.path)
    model = DDP(Bigram())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for it in range(1, args.iters + 1):
        if it % args.refresh_every == 0 and rank == 0:
            threading.Thread(target=tokenize, args=(args.path, it), daemon=True).start()
        x, y = tokens.get_batch(16, 64)
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and it % 10 == 0:
            print(f"iter {it}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
