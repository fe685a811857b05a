"""What the loss of each rank counts, where ranks have different numbers of tokens: through the loss alone.

DDP, FSDP and DeepSpeed average gradients over ranks, as if all had the same number of tokens. With N tokens on all R
ranks together, of which this rank's micro-batch has n, the gradient of the mean over all tokens is their average, if
each loss, the mean over its own tokens, is multiplied by::

    R · n / N            of a loss that is a sum instead of a mean:   R / N

Losses are scaled and nothing else: no hook is needed, and clipping, loss scaling and accumulation stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist

from holdfast.errors import BadValue
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.reduce import all_reduce
from holdfast.runtime.hetero.telling import alone

Count = int | float | torch.Tensor
Reduction = Literal["mean", "sum"]


@overload
def loss_weight(
    tokens: Count, *, reduction: Reduction = ..., divided_by: int = ..., group: dist.ProcessGroup | None = ...,
    timeout: float | str | None = ...,
) -> float: ...  # fmt: skip


@overload
def loss_weight(
    tokens: Sequence[Count], *, reduction: Reduction = ..., divided_by: int = ...,
    group: dist.ProcessGroup | None = ..., timeout: float | str | None = ...,
) -> tuple[float, ...]: ...  # fmt: skip


def loss_weight(
    tokens: Count | Sequence[Count],
    *,
    reduction: Reduction = "mean",
    divided_by: int = 1,
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> float | tuple[float, ...]:
    """By what to multiply this rank's loss before ``backward``, so that a step is that of one process on all tokens.

    ``tokens``: how many targets the loss is over (those that count: without padding, and without what is masked), or
    samples where each counts the same; for a step of several micro-batches a list with the number of each, which gives
    a weight for each. 0 is right for a rank that has none. ``reduction``: whether the loss is the mean over these, or
    their sum. ``divided_by``: what the framework itself divides each loss by (DeepSpeed's and Accelerate's
    ``gradient_accumulation_steps``). ``group``: the ranks over which gradients are averaged, with those of a context
    group; the default one if None. Every one of them calls this once a step: it is one small bounded sum.

    The mean loss over all tokens, to be shown, is the average over ranks of the weighted losses.

    Raises:
        BadValue: on every rank, if a number of tokens on any of them is negative or no number.
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    if reduction not in ("mean", "sum") or divided_by < 1:
        raise BadValue("loss_weight", why=f"a {reduction!r} that is divided by {divided_by} is not known")
    several = isinstance(tokens, Sequence)
    counts = [float(each) for each in tokens] if isinstance(tokens, Sequence) else [float(tokens)]
    good = all(math.isfinite(count) and count >= 0 for count in counts)
    total, world = _over_ranks(math.fsum(counts) if good else math.nan, group, timeout)
    if not math.isfinite(total):  # of NaN all ranks learn
        raise BadValue(
            "the number of tokens of a step", why=f"it is negative or no number on some rank (here: {counts})"
        )
    one = world * divided_by / total if total else 0.0
    weights = tuple(one * (count if reduction == "mean" else 1) for count in counts)
    return weights if several else weights[0]


def _over_ranks(count: float, group: dist.ProcessGroup | None, timeout: float | str | None) -> tuple[float, int]:
    """The sum over the ranks of the group, and how many they are."""
    if alone():
        return count, 1
    state = state_of(group)
    shared = torch.tensor([count], dtype=torch.float64, device=state.device)
    all_reduce(shared, group=group, timeout=timeout)
    return shared.item(), len(state.ranks)
