"""Activation monitoring: forward hooks collect statistics, one call gathers them."""
from __future__ import annotations

from collections import defaultdict
from typing import Callable, Iterable

import torch
from torch import nn


def kurtosis(x: torch.Tensor) -> float:
    x = x.float().flatten()
    centred = x - x.mean()
    return (centred.pow(4).mean() / centred.pow(2).mean().clamp(min=1e-12).pow(2)).item()


def dead_fraction(x: torch.Tensor) -> float:
    return (x.abs() < 1e-6).float().mean().item()


STATS: dict[str, Callable[[torch.Tensor], float]] = {"kurtosis": kurtosis, "dead": dead_fraction}


class Monitor:
    """Hooks every module of the given types and averages their statistics."""

    def __init__(self, types: Iterable[type], stats=tuple(STATS), gather_fn=None):
        self.types = tuple(types)
        self.stats = {name: STATS[name] for name in stats}
        self.gather_fn = gather_fn
        self._sums: dict[str, float] = defaultdict(float)
        self._hits: dict[str, int] = defaultdict(int)
        self._handles = []

    def attach(self, root: nn.Module, prefix: str) -> "Monitor":
        for name, module in root.named_modules():
            if isinstance(module, self.types):
                label = f"{prefix}.{name}" if name else prefix
                self._handles.append(module.register_forward_hook(self._hook(label)))
        return self

    def _hook(self, label):
        def hook(_module, _inputs, output):
            with torch.no_grad():
                for stat, fn in self.stats.items():
                    self._sums[f"{label}/{stat}"] += fn(output)
                    self._hits[f"{label}/{stat}"] += 1

        return hook

    def local(self) -> dict[str, float]:
        return {key: self._sums[key] / self._hits[key] for key in self._sums}

    def reset(self):
        self._sums.clear()
        self._hits.clear()

    def gather_and_aggregate(self) -> dict[str, float]:
        """Merge what all processes saw; keys seen twice are averaged."""
        mine = self.local()  # RELATED: taint-source
        self.reset()
        if not mine:  # RELATED: guard
            return {}  # EXPECT: local-early-exit
        if self.gather_fn is None:
            return mine
        merged = defaultdict(list)
        for part in self.gather_fn(mine):
            for key, value in part.items():
                merged[key].append(value)
        return {key: sum(values) / len(values) for key, values in sorted(merged.items())}

    def detach(self):
        while self._handles:
            self._handles.pop().remove()
