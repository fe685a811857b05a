"""Perplexity harness over several corpora for a model that is sharded with FSDP."""
import math
import os
from collections import Counter
from typing import Iterator, List, NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

VOCAB = 83


class Sample(NamedTuple):
    corpus: str
    tokens: torch.Tensor


class Batch(NamedTuple):
    samples: List[Sample]
    filler: bool = False


class CharLM(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.body = nn.LSTM(dim, dim, num_layers=2, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids))[0])


def corpora():
    gen = torch.Generator().manual_seed(4)
    for corpus, size, longest in (("wiki", 50, 60), ("forum", 75, 20), ("law", 20, 120)):
        for _ in range(size):
            length = int(torch.randint(4, longest, (1,), generator=gen))
            yield Sample(corpus, torch.randint(0, VOCAB, (length,), generator=gen))


class Batches:
    """Batches of at most `budget` tokens out of this rank's share of the samples."""

    def __init__(self, samples, budget, device):
        share = samples[dist.get_rank() :: dist.get_world_size()]
        self.device = device
        self.ready = list(self._pack(share, budget))

    @staticmethod
    def _pack(share, budget) -> Iterator[Batch]:
        held, size = [], 0
        for sample in sorted(share, key=lambda s: len(s.tokens)):
            if held and size + len(sample.tokens) > budget:
                yield Batch(held)
                held, size = [], 0
            held.append(sample)
            size += len(sample.tokens)
        if held:
            yield Batch(held)

    @property
    def rounds(self):
        count = torch.tensor([len(self.ready)], device=self.device)
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        return int(count)

    def __iter__(self):
        empty = Batch([Sample("", torch.zeros(2, dtype=torch.long))], filler=True)
        for n in range(self.rounds):
            yield self.ready[n] if n < len(self.ready) else empty


class Evaluator:
    def __init__(self, model, device):
        self.model, self.device = model, device

    @torch.no_grad()
    def _nll(self, batch):
        ids = nn.utils.rnn.pad_sequence([s.tokens for s in batch.samples], batch_first=True).to(self.device)
        logits = self.model(ids)[:, :-1]
        loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        return [(s.corpus, loss[i, : len(s.tokens) - 1].sum().item(), len(s.tokens) - 1) for i, s in enumerate(batch.samples)]

    def _share(self, rows):
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, rows)
        return [row for rows in everyone for row in rows]

    def __call__(self, batches):
        nll, tokens = Counter(), Counter()
        for batch in batches:
            rows = self._nll(batch)
            for corpus, value, count in self._share([] if batch.filler else rows):
                nll[corpus] += value
                tokens[corpus] += count
        return {corpus: math.exp(nll[corpus] / tokens[corpus]) for corpus in sorted(tokens)}


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = FSDP(CharLM().to(device), device_id=device).eval()
    table = Evaluator(model, device)(Batches(list(corpora()), 256, device))
    if dist.get_rank() == 0:
        for corpus, perplexity in table.items():
            print(f"{corpus:8s} {perplexity:8.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
