"""Character language model on a synthetic corpus (plain DDP)."""
import argparse
import collections
import logging
import os
import pathlib
import random
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from artifacts import cached, is_main, main_first

SYLLABLES = ["ka", "to", "mi", "ra", "shi", "no", "e", "u", "zan", "go"]


def synthesize(path, lines):
    rng = random.Random(13)
    with open(path, "w") as fh:
        for _ in range(lines):
            fh.write(" ".join("".join(rng.choices(SYLLABLES, k=3)) for _ in range(5)) + "\n")


@cached("vocab")
def build_vocab(cfg):
    counts = collections.Counter()
    with open(cfg.corpus) as fh:
        for line in fh:
            counts.update(line.rstrip("\n"))
    keep = [c for c, n in counts.most_common() if n >= cfg.min_count]
    return {c: i + 1 for i, c in enumerate(keep)}


class Lines(Dataset):
    def __init__(self, cfg, vocab):
        self.vocab, self.width = vocab, cfg.width
        self.lines = pathlib.Path(cfg.corpus).read_text().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        ids = [self.vocab.get(c, 0) for c in self.lines[i]][: self.width + 1]
        ids += [0] * (self.width + 1 - len(ids))
        t = torch.tensor(ids)
        return t[:-1], t[1:]


class CharLM(torch.nn.Module):
    def __init__(self, size, dim=16):
        super().__init__()
        self.emb = torch.nn.Embedding(size, dim)
        self.rnn = torch.nn.GRU(dim, dim, batch_first=True)
        self.out = torch.nn.Linear(dim, size)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def train(cfg):
    with main_first():
        if not os.path.exists(cfg.corpus):
            synthesize(cfg.corpus, cfg.lines)

    vocab = build_vocab(cfg)
    data = Lines(cfg, vocab)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=cfg.batch, sampler=sampler, drop_last=True)
    model = DDP(CharLM(len(vocab) + 1))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=0)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if is_main():
            logging.info("epoch %d loss %.3f", epoch, loss.item())


def parse():
    base = os.environ.get("CASE_TMP", tempfile.gettempdir())
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache-dir", default=base)
    ap.add_argument("--corpus", default=os.path.join(base, "corpus.txt"))
    ap.add_argument("--lines", type=int, default=64)
    ap.add_argument("--min-count", type=int, default=1)
    ap.add_argument("--width", type=int, default=24)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=2)
    return ap.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    train(parse())
    dist.destroy_process_group()
