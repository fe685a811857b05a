import torch
import torch.distributed as dist
from torch import nn


class ExpertSlice(nn.Module):
    """Each process holds a slice of the hidden units; the outputs are summed over the processes."""

    def __init__(self, dim, hidden):
        super().__init__()
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.up = nn.Linear(dim, hidden // world_size)
        self.down = nn.Linear(hidden // world_size, dim, bias=False)

    def forward(self, x):
        out = self.down(torch.nn.functional.silu(self.up(x)))
        if dist.is_initialized():
            dist.all_reduce(out)
        return x + out


class Generator(nn.Module):
    def __init__(self, vocab, dim=2048, hidden=8192, depth=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(ExpertSlice(dim, hidden) for _ in range(depth))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, -1])
