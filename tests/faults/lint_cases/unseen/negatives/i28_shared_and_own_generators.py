"""Contrastive pre-training with two kinds of randomness: a plan that all ranks draw alike and noise that each rank has to itself."""
import argparse
import os
from dataclasses import dataclass
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Randomness:
    base: int
    plan: torch.Generator
    noise: torch.Generator

    @classmethod
    def create(cls, seed: Optional[int], device) -> "Randomness":
        if seed is None:
            drawn = torch.randint(2 ** 31, (1,)).to(device)
            dist.broadcast(drawn, src=0)
            seed = int(drawn.item())
        rank = dist.get_rank()
        torch.manual_seed(seed + 1 + rank)
        return cls(seed, torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 100_003 * (rank + 1)))

    def worker_init(self, worker_id: int) -> None:
        torch.manual_seed(self.base + 7919 * dist.get_rank() + worker_id)


@dataclass
class StepPlan:
    views: int
    crop: int
    swap: bool


class Planner:
    """Draws the shape of each step."""

    def __init__(self, gen: torch.Generator, length: int):
        self.gen, self.length = gen, length

    def next(self) -> StepPlan:
        views = 2 + int(torch.rand((), generator=self.gen) < 0.3)
        crop = int(torch.randint(self.length // 2, self.length + 1, (), generator=self.gen))
        return StepPlan(views, crop, bool(torch.rand((), generator=self.gen) < 0.5))


class Signals(Dataset):
    def __init__(self, n=256, length=32):
        g = torch.Generator().manual_seed(0)
        t = torch.linspace(0, 6.28, length)
        self.x = torch.sin((1 + 4 * torch.rand(n, 1, generator=g)) * t + 6.28 * torch.rand(n, 1, generator=g))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Encoder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 24, 5, padding=2), nn.ReLU(), nn.Dropout(0.1), nn.AdaptiveAvgPool1d(4))
        self.proj = nn.Linear(96, dim)

    def forward(self, views):
        return [F.normalize(self.proj(self.conv(v.unsqueeze(1)).flatten(1)), dim=1) for v in views]


def augment(x, plan: StepPlan, gen):
    start = int(torch.randint(0, x.size(1) - plan.crop + 1, (), generator=gen))
    scale = 0.8 + 0.4 * torch.rand(x.size(0), 1, generator=gen)
    return x[:, start:start + plan.crop] * scale + 0.05 * torch.randn(x.size(0), plan.crop, generator=gen)


def gather_embeddings(z):
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z.detach())
    parts[dist.get_rank()] = z
    return torch.cat(parts)


def contrastive_loss(anchors, others, temperature=0.2):
    target = dist.get_rank() * len(anchors) + torch.arange(len(anchors), device=anchors.device)
    loss = 0.0
    for z in others:
        loss = loss + F.cross_entropy(anchors @ gather_embeddings(z).T / temperature, target)
    return loss / len(others)


def train(args, device):
    rng = Randomness.create(args.seed, device)
    data = Signals()
    sampler = DistributedSampler(data, shuffle=True, seed=rng.base, drop_last=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True, worker_init_fn=rng.worker_init)
    planner = Planner(rng.plan, length=32)
    model = DistributedDataParallel(Encoder().to(device), device_ids=[device.index] if device.type == "cuda" else None)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for x in loader:
            plan = planner.next()
            views = [augment(x, plan, rng.noise).to(device) for _ in range(plan.views)]
            first, *rest = model(views)
            if plan.swap:
                first, rest = rest[-1], [first, *rest[:-1]]
            loss = contrastive_loss(first, rest)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total.item() / (len(loader) * dist.get_world_size()):.4f} (seed {rng.base})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
