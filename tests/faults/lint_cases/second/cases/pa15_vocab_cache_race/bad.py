"""SASRec-flavoured next-item model; vocabulary cached next to the data."""
import argparse
import collections
import json
import os
import random
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PAD, UNK = 0, 1


def read_sessions(n=400, seed=2):
    """Raw click sessions; in production a directory of log files."""
    rng = random.Random(seed)
    for _ in range(n):
        start = rng.randrange(150)
        yield [f"sku-{(start + k * rng.choice([1, 1, 2])) % 160}" for k in range(rng.randrange(4, 12))]


class ItemVocab:
    def __init__(self, index):
        self.index = index

    def __len__(self):
        return len(self.index) + 2

    def encode(self, session, length):
        ids = [self.index.get(i, UNK) for i in session][-length:]
        return [PAD] * (length - len(ids)) + ids

    @classmethod
    def build(cls, sessions, min_count):
        counts = collections.Counter(i for s in sessions for i in s)
        kept = sorted(i for i, c in counts.items() if c >= min_count)
        return cls({item: k + 2 for k, item in enumerate(kept)})

    def dump(self, path):
        with open(path, "w") as f:  # EXPECT: fs-race
            json.dump(self.index, f)

    @classmethod
    def load(cls, path):
        with open(path) as f:
            return cls(json.load(f))


class SessionData:
    def __init__(self, cache_dir, length=8, min_count=2):
        self.cache_dir, self.length, self.min_count = cache_dir, length, min_count
        self.vocab = None

    @property
    def vocab_path(self):
        return os.path.join(self.cache_dir, f"vocab_min{self.min_count}.json")

    def prepare(self):
        os.makedirs(self.cache_dir, exist_ok=True)
        if not os.path.exists(self.vocab_path):  # RELATED: guard
            ItemVocab.build(read_sessions(), self.min_count).dump(self.vocab_path)

    def setup(self):
        self.vocab = ItemVocab.load(self.vocab_path)
        rows = torch.tensor([self.vocab.encode(s, self.length) for s in read_sessions()])
        self.train = TensorDataset(rows[:, :-1], rows[:, 1:])

    def loader(self, batch):
        return DataLoader(self.train, batch, sampler=DistributedSampler(self.train, drop_last=True))


class NextItem(nn.Module):
    def __init__(self, n_items, dim=32, length=7):
        super().__init__()
        self.items = nn.Embedding(n_items, dim, padding_idx=PAD)
        self.pos = nn.Parameter(torch.zeros(length, dim))
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.ones(length, length, dtype=torch.bool), 1))

    def forward(self, x):
        h = self.items(x) + self.pos
        h = h + self.attn(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return h @ self.items.weight.t()


def fit(data, epochs, batch):
    loader = data.loader(batch)
    model = DDP(NextItem(len(data.vocab)))
    optim = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PAD)
            optim.zero_grad()
            loss.backward()
            optim.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} vocab {len(data.vocab)}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cache", default=os.path.join(tempfile.gettempdir(), "sasrec_vocab_cache"))
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = SessionData(args.cache)
    data.prepare()
    data.setup()
    fit(data, args.epochs, batch=32)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
