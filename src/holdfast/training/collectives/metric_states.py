"""Reduce torchmetrics' metrics together: one collective per dtype, instead of several per state.

torchmetrics (1.9) gathers every state of every metric separately, each behind a barrier. States
that are sums, means, maxima or minima are packed here (``coalesced.py``). A metric with any other
kind (concatenated lists, user functions), or with a group or gather function of its own, is left to
torchmetrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from holdfast.core.errors import MissingExtra
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.coalesced import all_reduce_many
from holdfast.training.collectives.groups.group_info import state_of

if TYPE_CHECKING:
    from torchmetrics import Metric

_SUM, _MEAN, _MAX, _MIN = "sum", "mean", "max", "min"
_OPERATIONS = {
    _SUM: dist.ReduceOp.SUM,
    _MEAN: dist.ReduceOp.SUM,
    _MAX: dist.ReduceOp.MAX,
    _MIN: dist.ReduceOp.MIN,
}


@suggest_keywords
@contextmanager
def synced(
    metrics: torch.nn.Module,
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> Iterator[None]:
    """Within this block, give ``metrics`` the states of all ranks.

    ``metrics`` is a Metric, a MetricCollection or a module that contains some: ``with
    synced(metrics): values = metrics.compute()``. Afterwards each rank has its own states again.
    All ranks enter the block, including those that saw no batch. ``timeout``: as in
    :func:`holdfast.comm.all_reduce`.

    Raises:
        MissingExtra: torchmetrics is not installed.
        CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    packable, others = _partition(metrics, group)
    found = [*packable, *others]
    before = [(metric._to_sync, metric._should_unsync) for metric in found]
    try:
        _reduce_states(packable, group, timeout)
        for metric in others:
            metric.sync(
                dist_sync_fn=metric.dist_sync_fn, process_group=metric.process_group or group
            )
        for metric in found:
            metric._computed = None  # a cached result is of other states, perhaps only on this rank
            metric._to_sync = metric._should_unsync = False
        yield
    finally:
        for metric, (to_sync, should_unsync) in zip(found, before, strict=True):
            metric._to_sync, metric._should_unsync, metric._computed = to_sync, should_unsync, None
            if metric._is_synced:
                metric.unsync()


def _partition(
    metrics: torch.nn.Module, group: dist.ProcessGroup | None
) -> tuple[list[Metric], list[Metric]]:
    """Return nested metrics to synchronize: those that are packed, and those of torchmetrics."""
    try:
        from torchmetrics import Metric, MetricCollection  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtra("torchmetrics") from None
    packable: list[Metric] = []
    others: list[Metric] = []
    for module in metrics.modules():
        if isinstance(module, MetricCollection):
            module.values(copy_state=False)  # the metrics of a compute group share one state
    for module in metrics.modules():
        if not (isinstance(module, Metric) and module._to_sync and module._reductions):
            continue
        if dist.is_initialized():
            is_custom = module.dist_sync_fn is not None or module.process_group not in (None, group)
            (others if is_custom or not _is_packable(module) else packable).append(module)
    return packable, others


def _is_packable(metric: Metric) -> bool:
    kinds = _reduction_kinds()
    return all(
        reduction in kinds
        and isinstance(state := getattr(metric, name), torch.Tensor)
        and state.dtype is not torch.bool
        and not state.is_complex()
        for name, reduction in metric._reductions.items()
    )


def _reduction_kinds() -> dict[Any, str]:
    """Return the kind of each function that torchmetrics uses for ``dist_reduce_fx="sum"`` etc."""
    from torchmetrics.utilities import data  # noqa: PLC0415 - optional

    return {
        data.dim_zero_sum: _SUM,
        data.dim_zero_mean: _MEAN,
        data.dim_zero_max: _MAX,
        data.dim_zero_min: _MIN,
    }


def _reduce_states(
    metrics: list[Metric], group: dist.ProcessGroup | None, timeout: float | str | None
) -> None:
    """Replace the metrics' states by reduced ones, as ``Metric.sync`` does; it has no public hook.

    A state that several metrics share is reduced once.
    """
    kinds = _reduction_kinds()
    states: dict[dist.ReduceOp.RedOpType, dict[int, torch.Tensor]] = {}
    for metric in metrics:
        for name, reduction in metric._reductions.items():
            state = getattr(metric, name)
            states.setdefault(_OPERATIONS[kinds[reduction]], {})[id(state)] = state
    reduced = {}
    for op in sorted(states, key=str):
        copies = [state.detach().clone() for state in states[op].values()]
        results = all_reduce_many(copies, op, group, timeout=timeout)
        reduced[op] = dict(zip(states[op], results, strict=True))
    size = len(state_of(group).ranks) if metrics else 1
    for metric in metrics:
        metric._cache = {name: getattr(metric, name) for name in metric._defaults}
        metric._is_synced = True
        for name, reduction in metric._reductions.items():
            kind = kinds[reduction]
            total = reduced[_OPERATIONS[kind]][id(metric._cache[name])]
            setattr(metric, name, total / size if kind == _MEAN else total)
