import torch
import torch.distributed as dist
from torch import nn


class SumOverGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ParallelMLP(nn.Module):
    """Hidden units split over the tp group. The slices start from seeds of their own."""

    def __init__(self, dim, hidden, layout, seed, dropout=0.1):
        super().__init__()
        self.group = layout.tp_group
        self.norm = nn.LayerNorm(dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 100 + layout.tp_rank)
            self.up = nn.Linear(dim, hidden // layout.tp_size)
            self.down = nn.Linear(hidden // layout.tp_size, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.up(CopyToGroup.apply(self.norm(x), self.group)).relu()
        return x + self.dropout(SumOverGroup.apply(self.down(h), self.group))
