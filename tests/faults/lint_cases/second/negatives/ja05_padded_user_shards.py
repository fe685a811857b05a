"""Implicit-feedback matrix factorisation; users are hashed to ranks, shards differ in size."""
import math
from typing import Iterator, Tuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

Batch = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def interactions(n=3000, users=400, items=250, seed=13):
    g = torch.Generator().manual_seed(seed)
    u = (torch.rand(n, generator=g).pow(2) * users).long()
    return u, (u * 3 + torch.randint(0, 30, (n,), generator=g)) % items


class UserShard:
    def __init__(self, rank, world_size, batch_size):
        u, i = interactions()
        mine = (u * 2654435761 % 97) % world_size == rank
        self.users, self.items = u[mine], i[mine]
        self.batch_size = batch_size

    def num_batches(self):
        return math.ceil(len(self.users) / self.batch_size)

    def slice(self, k) -> Batch:
        lo, hi = k * self.batch_size, (k + 1) * self.batch_size
        u, i = self.users[lo:hi], self.items[lo:hi]
        return u, i, torch.ones(len(u))

    def filler(self) -> Batch:
        zero = torch.zeros(1, dtype=torch.long)
        return zero, zero, torch.zeros(1)


class PaddedEpoch:
    """As many batches as the largest shard has; ranks that run dry get zero-weight batches."""

    def __init__(self, shard):
        self.shard = shard
        longest = torch.tensor([shard.num_batches()])
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        self.rounds = int(longest.item())

    def __iter__(self) -> Iterator[Batch]:
        available = self.shard.num_batches()
        for k in range(available):
            yield self.shard.slice(k)
        for _ in range(self.rounds - available):
            yield self.shard.filler()


class Factorizer(nn.Module):
    def __init__(self, users=400, items=250, dim=16):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.bias = nn.Embedding(items, 1)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.bias(i).squeeze(-1)


class BprTrainer:
    def __init__(self, model, items=250):
        self.model, self.items = model, items
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
        self.optim = torch.optim.Adam(model.parameters(), lr=5e-3)

    def weighted_average(self, weight):
        buf = torch.cat([p.grad.flatten() for p in self.model.parameters()] + [weight.view(1)])
        dist.all_reduce(buf)
        grads = (buf[:-1] / buf[-1].clamp(min=1.0)).split([p.numel() for p in self.model.parameters()])
        for p, g in zip(self.model.parameters(), grads):
            p.grad.copy_(g.view_as(p))

    def step(self, users, items, weight):
        negatives = torch.randint(0, self.items, items.shape)
        margin = self.model(users, items) - self.model(users, negatives)
        loss = (F.softplus(-margin) * weight).sum()
        self.optim.zero_grad(set_to_none=False)
        loss.backward()
        self.weighted_average(weight.sum())
        self.optim.step()

    def fit(self, shard, epochs):
        for _ in range(epochs):
            for users, items, weight in PaddedEpoch(shard):
                self.step(users, items, weight)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    shard = UserShard(rank, dist.get_world_size(), batch_size=64)
    trainer = BprTrainer(Factorizer())
    trainer.fit(shard, epochs=3)
    print(f"rank {rank}: {shard.num_batches()} batches, item norm {trainer.model.item.weight.norm():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
