"""The weight of each rank's loss if ranks have different numbers of tokens.

DDP, FSDP and DeepSpeed average gradients over ranks, as if all had the same number of tokens. With
N tokens on all R ranks together, of which this rank's micro-batch has n, the gradient of the mean
over all tokens is that average if each loss, the mean over its own tokens, is multiplied by::

    R · n / N            if the loss is a sum instead of a mean:   R / N

Only losses are scaled: no hook is needed, and clipping, loss scaling and accumulation are
unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.groups.group_info import state_of
from holdfast.training.collectives.reduce import all_reduce
from holdfast.training.heterogeneous.exchange import is_single_process

TokenCount = int | float | torch.Tensor
Reduction = Literal["mean", "sum"]


@overload
def loss_weight(
    tokens: TokenCount,
    *,
    reduction: Reduction = ...,
    divided_by: int = ...,
    group: dist.ProcessGroup | None = ...,
    timeout: float | str | None = ...,
) -> float: ...


@overload
def loss_weight(
    tokens: Sequence[TokenCount],
    *,
    reduction: Reduction = ...,
    divided_by: int = ...,
    group: dist.ProcessGroup | None = ...,
    timeout: float | str | None = ...,
) -> tuple[float, ...]: ...


@suggest_keywords
def loss_weight(
    tokens: TokenCount | Sequence[TokenCount],
    *,
    reduction: Reduction = "mean",
    divided_by: int = 1,
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> float | tuple[float, ...]:
    """Return the factor for this rank's loss before ``backward``, for gradients as in one process.

    ``tokens``: the number of targets of the loss (without padding and masked ones), or of samples
    if each counts the same; for several micro-batches per step a list, which returns a weight for
    each. 0 is valid for a rank without tokens. ``reduction``: whether the loss is their mean or
    sum. ``divided_by``: what the framework divides each loss by (``gradient_accumulation_steps`` of
    DeepSpeed and Accelerate). ``group``: the ranks over which gradients are averaged, including
    those of a context group; by default the default group. All of them call this once per step: one
    small sum with a timeout.

    For logging, the mean loss over all tokens is the average over ranks of the weighted losses.

    Raises:
        InvalidValue: on every rank, if a number of tokens on any rank is negative or not finite.
        CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    if reduction not in ("mean", "sum") or divided_by < 1:
        raise InvalidValue(
            "loss_weight", why=f"unknown reduction {reduction!r} or divided_by {divided_by} below 1"
        )
    is_list = isinstance(tokens, Sequence)
    counts = [float(each) for each in tokens] if isinstance(tokens, Sequence) else [float(tokens)]
    is_valid = all(math.isfinite(count) and count >= 0 for count in counts)
    total, world = _sum_over_ranks(math.fsum(counts) if is_valid else math.nan, group, timeout)
    if not math.isfinite(total):  # NaN propagates to all ranks
        raise InvalidValue(
            "the number of tokens of a step",
            why=f"negative or not a number on some rank (on this rank: {counts})",
        )
    token_weight = world * divided_by / total if total else 0.0
    weights = tuple(token_weight * (count if reduction == "mean" else 1) for count in counts)
    return weights if is_list else weights[0]


def _sum_over_ranks(
    count: float, group: dist.ProcessGroup | None, timeout: float | str | None
) -> tuple[float, int]:
    """Return the sum over the ranks of the group, and the group size."""
    if is_single_process():
        return count, 1
    state = state_of(group)
    total_tensor = torch.tensor([count], dtype=torch.float64, device=state.device)
    all_reduce(total_tensor, group=group, timeout=timeout)
    return total_tensor.item(), len(state.ranks)
