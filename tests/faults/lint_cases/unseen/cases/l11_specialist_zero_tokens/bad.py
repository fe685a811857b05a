"""Decoder with a routed specialist layer whose weights are kept in slices.

Each process stores one slice of the specialist's matrices. They are put together for
the forward pass and their gradients are summed and cut again in the backward pass.
"""
import os
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class _Unslice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, piece, group):
        ctx.group, ctx.rows = group, piece.shape[0]
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, piece.contiguous(), group=group)  # RELATED: hidden-collective
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        start = dist.get_rank(ctx.group) * ctx.rows
        return grad[start : start + ctx.rows], None


class SlicedLinear(nn.Module):
    def __init__(self, n_in, n_out, group=None):
        super().__init__()
        self.group = group
        world = dist.get_world_size(group)
        if n_out % world:
            raise ValueError(f"{n_out} rows over {world} processes")
        self.piece = nn.Parameter(torch.randn(n_out // world, n_in) / n_in**0.5)

    @property
    def weight(self):
        return _Unslice.apply(self.piece, self.group)

    def forward(self, x):
        return F.linear(x, self.weight)


class Specialist(nn.Module):
    """Gated feed-forward part for the tokens that the router picks."""

    def __init__(self, dim, inner):
        super().__init__()
        self.fc1 = SlicedLinear(dim, 2 * inner)
        self.fc2 = SlicedLinear(inner, dim)

    def forward(self, x):
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * value)


class Routing(NamedTuple):
    index: torch.Tensor
    weight: torch.Tensor

    @property
    def count(self):
        return self.index.numel()


class ThresholdRouter(nn.Module):
    def __init__(self, dim, threshold=0.5):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.threshold = threshold

    def forward(self, flat, eligible):
        prob = torch.sigmoid(self.score(flat)).squeeze(-1)
        picked = (prob > self.threshold) & eligible
        index = picked.nonzero().squeeze(-1)
        return Routing(index, prob[index])


class RoutedLayer(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.router = ThresholdRouter(dim)
        self.specialist = Specialist(dim, inner)
        self.register_buffer("load", torch.zeros(()), persistent=False)

    def dispatch(self, flat, routing):
        tokens = flat[routing.index]
        return self.specialist(tokens) * routing.weight[:, None]

    def forward(self, h, eligible):
        flat = h.reshape(-1, h.shape[-1])
        routing = self.router(flat, eligible.reshape(-1))
        self.load += routing.count
        if routing.count > 0:  # RELATED: guard
            out = self.dispatch(flat, routing)  # EXPECT: local-data-branch
            flat = flat.index_add(0, routing.index, out)
        return flat.view_as(h)


class Decoder(nn.Module):
    SPECIAL_FROM = 24

    def __init__(self, vocab=32, dim=16, inner=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.routed = RoutedLayer(dim, inner)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.routed(self.embed(ids), ids >= self.SPECIAL_FROM)
        return self.head(torch.tanh(h))

    def replicated(self):
        return [p for n, p in self.named_parameters() if not n.endswith("piece")]


def average_replicated(model):
    """Average the gradients of the parameters that every process holds in full."""
    for p in model.replicated():
        grad = p.grad if p.grad is not None else torch.zeros_like(p)
        dist.all_reduce(grad)
        p.grad = grad / dist.get_world_size()


def domain_batches(rank, steps):
    """Plain prose never uses the upper part of the vocabulary; code does."""
    gen = torch.Generator().manual_seed(70 + rank)
    for step in range(steps):
        prose = step % 3 == 2 and rank % 2 == 1
        yield torch.randint(0, 20 if prose else 32, (2, 10), generator=gen)


def report(step, loss, model):
    stats = torch.stack([loss.detach(), model.routed.load])
    dist.all_reduce(stats)
    if dist.get_rank() == 0:
        print(f"step {step} loss {stats[0] / dist.get_world_size():.3f} routed {int(stats[1])}")
    model.routed.load.zero_()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = Decoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = torch.profiler.profile() if os.environ.get("PROFILE") and rank == 0 else nullcontext()
    with profiler:
        for step, ids in enumerate(domain_batches(rank, 6)):
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            average_replicated(model)
            opt.step()
            report(step, loss, model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
