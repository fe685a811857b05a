"""Greedy decoding with a column/row split MLP language model."""
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from runtime import make_runtime


@dataclass
class Settings:
    vocab: int = 40
    dim: int = 16
    hidden: int = 32
    layers: int = 2
    prompt: tuple = (3, 1, 4)
    new_tokens: int = 6


class SplitMLP(nn.Module):
    def __init__(self, dim, hidden, parts):
        super().__init__()
        if hidden % parts:
            raise ValueError("hidden size must be divisible by the number of workers")
        self.up = nn.Linear(dim, hidden // parts, bias=False)
        self.down = nn.Linear(hidden // parts, dim, bias=False)
        self.parts = parts

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        if self.parts > 1:
            dist.all_reduce(y)
        return x + y


class Decoder(nn.Module):
    def __init__(self, s: Settings, parts, rank):
        super().__init__()
        torch.manual_seed(0)
        self.emb = nn.Embedding(s.vocab, s.dim)
        self.head = nn.Linear(s.dim, s.vocab)
        torch.manual_seed(1 + rank)
        self.blocks = nn.ModuleList(SplitMLP(s.dim, s.hidden, parts) for _ in range(s.layers))

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1])


@torch.inference_mode()
def generate(model, prompt, n, device):
    ids = torch.tensor([list(prompt)], device=device)
    for _ in range(n):
        nxt = model(ids).argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], dim=1)
    return ids


def main():
    logging.basicConfig(level=logging.INFO)
    with make_runtime(Settings()) as rt:
        model = Decoder(rt.settings, rt.env.world_size, rt.env.rank).to(rt.device).eval()
        t0 = time.perf_counter()
        out = generate(model, rt.settings.prompt, rt.settings.new_tokens, rt.device)
        took = time.perf_counter() - t0
        if rt.env.rank == 0:
            logging.info("%s  (%.1f tok/s)", out[0].tolist(), rt.settings.new_tokens / took)
        dist.barrier()


if __name__ == "__main__":
    main()
