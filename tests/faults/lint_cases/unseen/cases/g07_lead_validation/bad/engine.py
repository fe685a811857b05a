"""Epoch phases of the particle reconstruction training."""
import functools
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TrackNet(nn.Module):
    """Per-element classification plus a momentum correction."""

    def __init__(self, n_in=7, width=24, n_classes=3):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.ELU())
        self.cls = nn.Linear(width, n_classes)
        self.mom = nn.Linear(width, 1)

    def forward(self, elements):
        h = self.embed(elements)
        return {"cls": self.cls(h), "mom": self.mom(h).squeeze(-1)}


@dataclass
class TrainState:
    net: nn.Module
    lr: float = 1e-2
    epoch: int = 0
    stale: int = 0
    best: float = float("inf")
    lead: bool = field(init=False)
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self):
        self.lead = not dist.is_initialized() or dist.get_rank() == 0
        self.model = DistributedDataParallel(self.net) if dist.is_initialized() else self.net
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)


def particle_loss(out, target):
    return nn.functional.cross_entropy(out["cls"], target["cls"]) + nn.functional.huber_loss(out["mom"], target["mom"])


def _run(state: TrainState, loader, *, train: bool):
    state.model.train(train)
    total = 0.0
    with torch.set_grad_enabled(train):
        for elements, target in loader:
            out = state.model(elements)  # RELATED: hidden-collective
            loss = particle_loss(out, target)
            if train:
                state.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                state.optimizer.step()
            total += loss.item()
    return total / max(len(loader), 1)


PHASES = {
    "train": functools.partial(_run, train=True),
    "valid": functools.partial(_run, train=False),
}


def mean_over_ranks(value):
    t = torch.tensor([value])
    if dist.is_initialized():
        dist.all_reduce(t)
        t /= dist.get_world_size()
    return t.item()
