"""Language-model pre-training entry point with component registry and managed teardown."""
from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from typing import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger("pretrain")

_OPTIMIZERS: dict[str, Callable] = {}


def register_optimizer(name):
    def deco(fn):
        _OPTIMIZERS[name] = fn
        return fn

    return deco


@register_optimizer("adamw")
def _adamw(params, lr):
    return torch.optim.AdamW(params, lr=lr, weight_decay=0.01)


@register_optimizer("sgd")
def _sgd(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


@dataclasses.dataclass
class JobConfig:
    vocab: int = 48
    dim: int = 16
    seq_len: int = 20
    batch: int = 4
    steps: int = 8
    lr: float = 1e-3
    optimizer: str = "adamw"
    log_every: int = 2
    dump_dir: str = dataclasses.field(default_factory=lambda: os.environ.get("CASE_TMP", "."))
    shards: str = "clean,truncated"


class MetricsBook:
    """Accumulates locally; totals over all processes are written when it is closed."""

    def __init__(self, path):
        self.path = path
        self.tokens = 0
        self.loss_sum = 0.0

    def add(self, loss, tokens):
        self.loss_sum += loss * tokens
        self.tokens += tokens

    def close(self):
        totals = torch.tensor([self.loss_sum, float(self.tokens)], dtype=torch.float64)
        dist.all_reduce(totals)  # RELATED: hidden-collective
        if dist.get_rank() == 0:
            with open(self.path, "w") as fh:
                json.dump({"loss": (totals[0] / totals[1].clamp(min=1)).item(), "tokens": int(totals[1])}, fh)


class ShardReader:
    """Yields batches of token ids out of one shard of the corpus."""

    def __init__(self, cfg: JobConfig, index: int):
        self.cfg = cfg
        kinds = cfg.shards.split(",")
        self.kind = kinds[index % len(kinds)]
        self.gen = torch.Generator().manual_seed(index)

    def __iter__(self) -> Iterator[torch.Tensor]:
        size = (self.cfg.batch, self.cfg.seq_len + 1)
        for i in range(self.cfg.steps):
            if self.kind == "truncated" and i == 5:
                raise EOFError(f"shard ends after {i} batches")
            yield torch.randint(self.cfg.vocab, size, generator=self.gen)


class BigramLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids, labels):
        logits = self.head(self.tok(ids))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Trainer:
    def __init__(self, cfg: JobConfig):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = DDP(BigramLM(cfg))
        self.optimizer = _OPTIMIZERS[cfg.optimizer](self.model.parameters(), cfg.lr)
        self.reader = ShardReader(cfg, self.rank)
        self.book = MetricsBook(os.path.join(cfg.dump_dir, "totals.json"))

    def train(self):
        for step, ids in enumerate(self.reader, 1):
            loss = self.model(ids[:, :-1], ids[:, 1:])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.book.add(loss.item(), ids.shape[0] * self.cfg.seq_len)
            if step % self.cfg.log_every == 0 and self.rank == 0:
                logger.info("step %d loss %.3f", step, loss.item())

    def close(self):
        self.book.close()
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), os.path.join(self.cfg.dump_dir, "last.pt"))


@contextlib.contextmanager
def managed(factory: Callable[[], Trainer]):
    """Builds a trainer and makes sure that it is closed again."""
    trainer = factory()
    try:
        yield trainer
    finally:
        trainer.close()  # EXPECT: collective-in-except
        logger.info("rank %d closed", trainer.rank)


@contextlib.contextmanager
def process_group(backend):
    dist.init_process_group(backend)
    yield dist.get_world_size()
    dist.destroy_process_group()


def main(argv=()):
    logging.basicConfig(level=logging.INFO)
    cfg = JobConfig(**dict(pair.split("=", 1) for pair in argv))
    with process_group("gloo") as world:
        logger.info("world size %d", world)
        with managed(lambda: Trainer(cfg)) as trainer:
            trainer.train()


if __name__ == "__main__":
    main(sys.argv[1:])
