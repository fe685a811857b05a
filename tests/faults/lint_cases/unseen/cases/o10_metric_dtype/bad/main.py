"""Supervised fine-tuning with an evaluation that is split by source of the samples."""
import argparse
import json
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset

from metrics import build_metrics

SOURCES = ("chat", "code", "audio")


class Mixed(Dataset):
    """Samples are stored source by source, as they come out of the preprocessing."""

    def __init__(self, sizes, vocab=12, length=6):
        gen = torch.Generator().manual_seed(11)
        self.rows = []
        for source, size in sizes.items():
            for _ in range(size):
                self.rows.append((source, torch.randint(0, vocab, (length,), generator=gen)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        source, tokens = self.rows[idx]
        return {"source": source, "tokens": tokens}


def contiguous_shard(dataset, rank, world):
    per = len(dataset) // world
    return Subset(dataset, range(rank * per, (rank + 1) * per))


def collate(rows):
    return {"tokens": torch.stack([r["tokens"] for r in rows]), "source": [r["source"] for r in rows]}


class NextToken(nn.Module):
    def __init__(self, vocab=12, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


class EvalLoop:
    def __init__(self, model, loader, sources):
        self.model, self.loader = model, loader
        names = [f"{kind}/{src}" for kind in ("loss", "ppl", "acc") for src in sources]
        self.metrics = build_metrics(names, device="cpu")

    @torch.no_grad()
    def _step(self, batch):
        logits = self.model(batch["tokens"][:, :-1])
        labels = batch["tokens"][:, 1:]
        nll = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        right = (logits.argmax(-1) == labels).sum(1)
        for i, source in enumerate(batch["source"]):
            self.metrics[f"loss/{source}"].update(nll[i].sum().item(), nll.shape[1])
            self.metrics[f"ppl/{source}"].update(nll[i].sum().item(), nll.shape[1])
            self.metrics[f"acc/{source}"].update(right[i].item(), nll.shape[1])

    def run(self):
        for m in self.metrics.values():
            m.reset()
        self.model.eval()
        for batch in self.loader:
            self._step(batch)
        self.model.train()
        return {name: m.compute() for name, m in self.metrics.items()}


def train(model, loader, steps, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batches = iter(loader)
    for _ in range(steps):
        tokens = next(batches)["tokens"]
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=5e-3)
    args, _ = parser.parse_known_args(namespace=SimpleNamespace())
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(NextToken())
    train_set = contiguous_shard(Mixed({"chat": 32, "code": 32, "audio": 16}), rank, world)
    eval_set = contiguous_shard(Mixed({"chat": 10, "code": 8, "audio": 6}), rank, world)
    train(model, DataLoader(train_set, batch_size=4, shuffle=True, collate_fn=collate), args.steps, args.lr)
    report = EvalLoop(model.module, DataLoader(eval_set, batch_size=4, collate_fn=collate), SOURCES).run()
    if rank == 0:
        with open(os.path.join(os.environ.get("CASE_TMP", "."), "eval.json"), "w") as fh:
            json.dump(report, fh, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
