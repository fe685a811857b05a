"""Scale learning rates when the global batch size changes: linearly, by its square root, or not.

The linear rule is that of Goyal et al. 2017 (arXiv 1706.02677) for SGD; with Adam the square root
is common (Krizhevsky 2014, arXiv 1404.5997; Malladi et al. 2022, arXiv 2205.10287). Both need a
warm-up if the batch grows by much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from holdfast.core.errors import UnknownName

RULES: Mapping[str, Callable[[float], float]] = {"linear": lambda growth: growth, "sqrt": math.sqrt}
#: Attributes of torch's parameter groups and schedulers that hold rates.
_GROUP_RATES, _SCHEDULER_RATES = (
    ("lr", "initial_lr", "max_lr", "min_lr"),
    ("base_lrs", "max_lrs", "min_lrs", "_last_lr"),
)


def scale_factor(rule: str | None, growth: float) -> float:
    """Return the factor for the rate if the global batch is ``growth`` times the initial one.

    Raises:
        UnknownName: the rule does not exist.
    """
    if rule is None:
        return 1.0
    if rule not in RULES:
        raise UnknownName("rule for the rate", rule, RULES)
    return RULES[rule](growth)


def scale_rates(optimizers: Iterable[torch.optim.Optimizer], scheduler: Any, factor: float) -> None:
    """Multiply the rates of optimizers and of a scheduler (and nested ones)."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name in _GROUP_RATES:
                if isinstance(group.get(name), torch.Tensor):
                    group[name].mul_(factor)
                elif name in group:
                    group[name] *= factor
    _scale_scheduler(scheduler, factor)


def _scale_scheduler(scheduler: Any, factor: float) -> None:
    for name in _SCHEDULER_RATES:
        rates = vars(scheduler).get(name) if hasattr(scheduler, "__dict__") else None
        if isinstance(rates, list):
            vars(scheduler)[name] = [rate * factor for rate in rates]
    for inner in getattr(scheduler, "_schedulers", ()):  # of SequentialLR and ChainedScheduler
        _scale_scheduler(inner, factor)
