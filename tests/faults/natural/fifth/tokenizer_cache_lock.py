"""The ranks wait for each other inside a file lock, so the others never get the lock.

Modelled on threads about filelock around dataset preparation in torchrun jobs (the barrier was moved into the with block).
"""
# case: processes=3 ending=hang causes=stalled-outside-collectives,python-lock-held,file-io-blocked,stale-build-lock,rank-missing-collective,rank-skips-collective ranks=- framework=ddp

import fcntl
import json
import os
import tempfile
from collections import Counter
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CACHE = os.path.join(tempfile.gettempdir(), f"char-cache-{os.environ['MASTER_PORT']}-{os.getppid()}")
TEXT = "the quick brown fox jumps over the lazy dog and runs back into the wood " * 200


@contextmanager
def locked(path):
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # GUILTY
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def prepare_vocabulary():
    os.makedirs(CACHE, exist_ok=True)
    target = os.path.join(CACHE, "vocab.json")
    with locked(os.path.join(CACHE, ".lock")):  # ALSO
        if not os.path.exists(target):
            counts = Counter(TEXT)
            with open(target, "w") as out:
                json.dump({c: i for i, (c, _) in enumerate(counts.most_common())}, out)
        dist.barrier()  # ALSO
    with open(target) as source:
        return json.load(source)


class CharModel(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32)
        self.rnn = nn.LSTM(32, 64, batch_first=True)
        self.out = nn.Linear(64, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    vocab = prepare_vocabulary()  # ALSO
    ids = torch.tensor([vocab[c] for c in TEXT])
    torch.manual_seed(0)
    model = DDP(CharModel(len(vocab)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(100):
        at = torch.randint(0, len(ids) - 33, (16,), generator=g)
        x = torch.stack([ids[i : i + 32] for i in at])
        y = torch.stack([ids[i + 1 : i + 33] for i in at])
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
