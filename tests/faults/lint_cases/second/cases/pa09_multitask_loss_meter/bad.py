"""Multi-task perception (depth, normals, semantic) with one shared encoder."""
import os
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

TASKS = OrderedDict(
    semantic=dict(channels=5, weight=1.0),
    depth=dict(channels=1, weight=0.5),
    normals=dict(channels=3, weight=0.7),
    edges=dict(channels=1, weight=0.3),
)


def semantic_loss(pred, target):
    return F.cross_entropy(pred, target.squeeze(1).mul(4.99).long())


def regression_loss(pred, target):
    return F.l1_loss(pred, target.expand_as(pred))


def normals_loss(pred, target):
    return 1 - F.cosine_similarity(pred, target.expand_as(pred), dim=1).mean()


LOSS_FNS = {"semantic": semantic_loss, "depth": regression_loss, "normals": normals_loss, "edges": regression_loss}


class MultiTaskNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU())
        self.heads = nn.ModuleDict({t: nn.Conv2d(width, c["channels"], 1) for t, c in TASKS.items()})

    def forward(self, x):
        h = self.encoder(x)
        return {t: head(h) for t, head in self.heads.items()}


class EpochMeter:
    """Running sums of scalars, averaged over all ranks at the end of an epoch."""

    def __init__(self, names):
        self.names = set(names)  # RELATED: source
        self.reset()

    def reset(self):
        self.sums = {n: torch.zeros(2, dtype=torch.float64) for n in self.names}

    def add(self, name, value, n):
        self.sums[name] += torch.tensor([float(value) * n, n], dtype=torch.float64)

    def merge(self):
        for name in self.names:  # EXPECT: order-divergence
            dist.all_reduce(self.sums[name])  # RELATED: hidden-collective

    def averages(self):
        self.merge()
        return {n: (s[0] / s[1]).item() for n, s in self.sums.items()}


class Engine:
    def __init__(self, model, lr=1e-2):
        self.model = DDP(model)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.meter = EpochMeter(list(TASKS) + ["total"])

    def losses(self, image, target):
        pred = self.model(image)
        return {t: LOSS_FNS[t](pred[t], target) for t in TASKS}

    def step(self, image, target):
        losses = self.losses(image, target)
        total = sum(TASKS[t]["weight"] * l for t, l in losses.items())
        self.optim.zero_grad()
        total.backward()
        self.optim.step()
        for t, l in {**losses, "total": total}.items():
            self.meter.add(t, l.item(), len(image))

    def epoch(self, batches):
        self.meter.reset()
        for image, target in batches:
            self.step(image, target)
        return self.meter.averages()


def synthetic(rank, steps=6, batch=4):
    g = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        image = torch.rand(batch, 3, 16, 16, generator=g)
        yield image, image.mean(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    engine = Engine(MultiTaskNet())
    best = float("inf")
    for epoch in range(int(os.environ.get("EPOCHS", 3))):
        avg = engine.epoch(synthetic(dist.get_rank()))
        if avg["total"] < best:
            best = avg["total"]
        print(f"rank {dist.get_rank()} epoch {epoch} best {best:.4f} " + " ".join(f"{k}={avg[k]:.4f}" for k in sorted(avg)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
