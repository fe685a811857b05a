"""The learning rate where the global batch has changed: with it (linear), with its root (sqrt), or not at all.

The linear rule is that of Goyal et al. 2017 (arXiv 1706.02677) for SGD; with Adam the square root is common (Krizhevsky
2014, arXiv 1404.5997; Malladi et al. 2022, arXiv 2205.10287). Both need a warm-up where the batch grows by much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from holdfast.errors import UnknownName

RULES: Mapping[str, Callable[[float], float]] = {"linear": lambda growth: growth, "sqrt": math.sqrt}
#: What torch's optimizers and schedulers keep of rates, in a group and in themselves.
_IN_GROUPS, _IN_SCHEDULERS = ("lr", "initial_lr", "max_lr", "min_lr"), ("base_lrs", "max_lrs", "min_lrs", "_last_lr")


def factor(rule: str | None, growth: float) -> float:
    """By what the rate is multiplied where the global batch is ``growth`` times the first one.

    Raises:
        UnknownName: there is no such rule.
    """
    if rule is None:
        return 1.0
    if rule not in RULES:
        raise UnknownName("rule for the rate", rule, RULES)
    return RULES[rule](growth)


def scale(optimizers: Iterable[torch.optim.Optimizer], scheduler: Any, by: float) -> None:
    """Multiply all rates of optimizers, and those from which a scheduler (and those in it) works out the next ones."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name in _IN_GROUPS:
                if isinstance(group.get(name), torch.Tensor):
                    group[name].mul_(by)
                elif name in group:
                    group[name] *= by
    _scale_scheduler(scheduler, by)


def _scale_scheduler(scheduler: Any, by: float) -> None:
    for name in _IN_SCHEDULERS:
        rates = vars(scheduler).get(name) if hasattr(scheduler, "__dict__") else None
        if isinstance(rates, list):
            vars(scheduler)[name] = [rate * by for rate in rates]
    for inner in getattr(scheduler, "_schedulers", ()):  # of SequentialLR and ChainedScheduler
        _scale_scheduler(inner, by)
