"""GPT pretraining data: a document index is built once, memory-mapped by all ranks (Megatron style)."""
import argparse
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCAB = 71


@dataclass(frozen=True)
class IndexConfig:
    documents: int = 4000
    length: int = 32
    seed: int = 12

    @property
    def key(self):
        return hashlib.sha1(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


class IndexBuilder:
    """Lays all documents end to end, shuffled, and cuts them into blocks."""

    def __init__(self, cfg, cache):
        self.cfg = cfg
        self.path = Path(cache) / f"blocks-{cfg.key}.npy"

    def _documents(self):
        rng = np.random.default_rng(self.cfg.seed)
        for n in rng.permutation(self.cfg.documents):
            yield rng.integers(0, VOCAB, size=20 + int(n) % 60, dtype=np.int64)

    def build(self):
        tokens = np.concatenate(list(self._documents()))
        width = self.cfg.length + 1
        blocks = tokens[: len(tokens) // width * width].reshape(-1, width)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}.part.npy")
        np.save(part, blocks)
        os.replace(part, self.path)

    def open(self):
        return np.load(self.path, mmap_mode="r")  # EXPECT: fs-race


class GPTBlocks(Dataset):
    def __init__(self, cfg, cache):
        builder = IndexBuilder(cfg, cache)
        if dist.get_rank() == 0 and not builder.path.exists():  # RELATED: guard
            builder.build()  # RELATED: source
        self.blocks = builder.open()

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        block = torch.from_numpy(np.array(self.blocks[i]))
        return block[:-1], block[1:]


class GPT(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def build_loader(args):
    data = GPTBlocks(IndexConfig(), args.cache)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    return DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True), sampler


def main():
    run = os.environ.get("TORCHELASTIC_RUN_ID", "local")
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", default=os.path.join(tempfile.gettempdir(), f"gpt-blocks-{run}"))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    loader, sampler = build_loader(args)
    model = DDP(GPT().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sampler.set_epoch(0)
    for step, (ids, labels) in zip(range(args.steps), loader):
        loss = F.cross_entropy(model(ids.to(device)).flatten(0, 1), labels.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
