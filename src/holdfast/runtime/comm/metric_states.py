"""torchmetrics' metrics reduced together: one collective for each dtype, where torchmetrics has two or three a state.

torchmetrics (1.9) gathers every state of every metric by itself, each behind a barrier. States that are sums, means,
maxima or minima are packed here (``many.py``); a metric with any other kind (lists that are concatenated, functions of
the user's own), or with a group or a way to gather of its own, is left to torchmetrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from holdfast.errors import MissingExtra
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.many import all_reduce_many

if TYPE_CHECKING:
    from torchmetrics import Metric

_SUM, _MEAN, _MAX, _MIN = "sum", "mean", "max", "min"
_OPERATIONS = {
    _SUM: dist.ReduceOp.SUM, _MEAN: dist.ReduceOp.SUM, _MAX: dist.ReduceOp.MAX, _MIN: dist.ReduceOp.MIN,
}  # fmt: skip


@contextmanager
def synced(
    metrics: torch.nn.Module, group: dist.ProcessGroup | None = None, *, timeout: float | str | None = None
) -> Iterator[None]:
    """In this block the states of ``metrics`` (a Metric, a MetricCollection, any module with such) are those of all.

    ``with synced(metrics): values = metrics.compute()``; afterwards each rank has its own states again. All ranks come,
    also those that have seen no batch. ``timeout``: as of :func:`holdfast.comm.all_reduce`.

    Raises:
        MissingExtra: torchmetrics is not installed.
        CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    ours, theirs = _sorted(metrics, group)
    found = [*ours, *theirs]
    before = [(metric._to_sync, metric._should_unsync) for metric in found]
    try:
        _enter(ours, group, timeout)
        for metric in theirs:
            metric.sync(dist_sync_fn=metric.dist_sync_fn, process_group=metric.process_group or group)
        for metric in found:
            metric._computed = None  # one computed before is of other states, maybe on this rank alone
            metric._to_sync = metric._should_unsync = False
        yield
    finally:
        for metric, (to_sync, should_unsync) in zip(found, before, strict=True):
            metric._to_sync, metric._should_unsync, metric._computed = to_sync, should_unsync, None
            if metric._is_synced:
                metric.unsync()


def _sorted(metrics: torch.nn.Module, group: dist.ProcessGroup | None) -> tuple[list[Metric], list[Metric]]:
    """Those whose states are packed, and those that torchmetrics synchronizes by itself; metrics in metrics too."""
    try:
        from torchmetrics import Metric, MetricCollection  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtra("torchmetrics") from None
    ours: list[Metric] = []
    theirs: list[Metric] = []
    for module in metrics.modules():
        if isinstance(module, MetricCollection):
            module.values(copy_state=False)  # the metrics of a compute group have one state
    for module in metrics.modules():
        if isinstance(module, Metric) and module._to_sync and module._reductions and dist.is_initialized():
            own_way = module.dist_sync_fn is not None or module.process_group not in (None, group)
            (theirs if own_way or not _packable(module) else ours).append(module)
    return ours, theirs


def _packable(metric: Metric) -> bool:
    kinds = _kinds()
    return all(
        reduction in kinds
        and isinstance(state := getattr(metric, name), torch.Tensor)
        and state.dtype is not torch.bool
        and not state.is_complex()
        for name, reduction in metric._reductions.items()
    )


def _kinds() -> dict[Any, str]:
    """What torchmetrics makes of dist_reduce_fx="sum" and its like."""
    from torchmetrics.utilities import data  # noqa: PLC0415 - optional

    return {data.dim_zero_sum: _SUM, data.dim_zero_mean: _MEAN, data.dim_zero_max: _MAX, data.dim_zero_min: _MIN}


def _enter(metrics: list[Metric], group: dist.ProcessGroup | None, timeout: float | str | None) -> None:
    """Put reduced states in the place of the metrics' own, as ``Metric.sync`` does, which has no public way to do so.

    A state that several metrics share is reduced once.
    """
    kinds = _kinds()
    states: dict[dist.ReduceOp.RedOpType, dict[int, torch.Tensor]] = {}
    for metric in metrics:
        for name, reduction in metric._reductions.items():
            state = getattr(metric, name)
            states.setdefault(_OPERATIONS[kinds[reduction]], {})[id(state)] = state
    reduced = {}
    for op in sorted(states, key=str):
        copies = [state.detach().clone() for state in states[op].values()]
        reduced[op] = dict(zip(states[op], all_reduce_many(copies, op, group, timeout=timeout), strict=True))
    size = len(state_of(group).ranks) if metrics else 1
    for metric in metrics:
        metric._cache = {name: getattr(metric, name) for name in metric._defaults}
        metric._is_synced = True
        for name, reduction in metric._reductions.items():
            kind = kinds[reduction]
            whole = reduced[_OPERATIONS[kind]][id(metric._cache[name])]
            setattr(metric, name, whole / size if kind == _MEAN else whole)
