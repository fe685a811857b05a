"""Context-parallel scoring of long documents with ring attention."""
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class ModelConfig:
    vocab: int = 101
    dim: int = 64
    heads: int = 4
    layers: int = 2
    context: int = 4096


class Ring:
    """The neighbours of this rank in the context-parallel ring."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.next = (self.rank + 1) % self.size
        self.prev = (self.rank - 1) % self.size

    def _shift(self, block):
        incoming = torch.empty_like(block)
        dist.send(block.contiguous(), dst=self.next)  # EXPECT: p2p-deadlock
        dist.recv(incoming, src=self.prev)  # RELATED: hidden-collective
        return incoming

    def rotate(self, key, value):
        return self._shift(torch.stack([key, value])).unbind(0)

    def blocks(self, key, value):
        """Yield (owner, key, value) for every block of the document, own block first."""
        for turn in range(self.size):
            yield (self.rank - turn) % self.size, key, value
            if turn + 1 < self.size:
                key, value = self.rotate(key, value)


class RingAttention(nn.Module):
    def __init__(self, cfg, ring):
        super().__init__()
        self.heads, self.ring = cfg.heads, ring
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)

    def _split(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = map(self._split, self.qkv(x).chunk(3, dim=-1))
        scale = q.shape[-1] ** -0.5
        t = q.shape[2]
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        top = torch.full(q.shape[:-1], float("-inf"), device=x.device)
        total = torch.zeros_like(top)
        mixed = torch.zeros_like(q)
        for owner, key, value in self.ring.blocks(k, v):
            score = q @ key.transpose(-1, -2) * scale
            if owner == self.ring.rank:
                score = score.masked_fill(~causal, float("-inf"))
            elif owner > self.ring.rank:
                continue
            new_top = torch.maximum(top, score.amax(-1))
            weight = (score - new_top[..., None]).exp()
            decay = (top - new_top).exp()
            total = total * decay + weight.sum(-1)
            mixed = mixed * decay[..., None] + weight @ value
            top = new_top
        mixed = mixed / total[..., None]
        return self.out(mixed.transpose(1, 2).flatten(2))


class LongLM(nn.Module):
    def __init__(self, cfg, ring):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList([RingAttention(cfg, ring) for _ in range(cfg.layers)])
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@torch.inference_mode()
def score(model, document, ring):
    mine = document[: len(document) // ring.size * ring.size].chunk(ring.size)[ring.rank][None]
    logits = model(mine)
    nll = F.cross_entropy(logits[0, :-1], mine[0, 1:], reduction="sum")
    pair = torch.stack([nll, torch.tensor(float(mine.shape[1] - 1), device=mine.device)])
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).exp().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    cfg, ring = ModelConfig(), Ring()
    torch.manual_seed(0)
    model = LongLM(cfg, ring).to(device).eval()
    for n in range(args.documents):
        document = torch.randint(0, cfg.vocab, (cfg.context,)).to(device)
        ppl = score(model, document, ring)
        if ring.rank == 0:
            print(f"document {n} perplexity {ppl:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
