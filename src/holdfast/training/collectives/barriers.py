"""Synchronize ranks without moving data: a barrier in the job's store, and a joint decision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.core.errors import CollectiveTimeout, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.text import format_duration
from holdfast.training.collectives import timeouts
from holdfast.training.collectives.backend_calls import start_all_reduce
from holdfast.training.collectives.bounded_wait import begin_call, poll_until, wait_for_works
from holdfast.training.collectives.call_with_timeout import CallTimedOut, call_with_timeout
from holdfast.training.collectives.groups.arrivals import (
    BoundedCall,
    explain_timeout,
    grace_of,
    ranks_without_key,
)
from holdfast.training.collectives.groups.group_info import runs_alone, state_of
from holdfast.training.store_wait import wait_until

#: Longest pause between two polls of the store, in seconds.
_MAX_PAUSE_S = 0.25

_REDUCTIONS = {
    "any": dist.ReduceOp.MAX,
    "all": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
#: Completed barriers of each epoch and name.
_counts: dict[tuple[int, str], int] = {}


@suggest_keywords
def barrier(name: str, timeout: float | str | None = None) -> None:
    """Wait until every rank of the job has reached the barrier ``name``, through the store alone.

    Uses no communicator, and works where one is broken. A name may be used repeatedly.

    Raises:
        InvalidValue: ``timeout`` is not a duration.
        CollectiveTimeout: ranks did not arrive in time; names them, equally on all ranks. Or the
            store did not answer.
    """
    if runs_alone(None):
        return
    state = state_of(None, broken_too=True)
    limit_s = timeouts.choose_limit(state, 0, timeout=timeout)
    count = _counts[state.epoch, name] = _counts.get((state.epoch, name), 0) + 1
    store = PrefixStore(f"barrier/{name}/{count}", state.store)
    subject = f"barrier {name!r}"
    try:
        why, missing = call_with_timeout(
            lambda: _wait_at_barrier(store, state.ranks, limit_s), limit_s + grace_of(limit_s)
        )
    except CallTimedOut:
        why = f"the job's store did not answer within {format_duration(limit_s)}"
        raise CollectiveTimeout(subject, why=why) from None
    if why:
        raise CollectiveTimeout(subject, why=why, missing=missing)


def _wait_at_barrier(
    store: Store, ranks: tuple[int, ...], limit_s: float
) -> tuple[str, tuple[int, ...]]:
    """Return why the barrier timed out, and the missing ranks; empty if all arrived."""
    rank = dist.get_rank()
    store.set(str(rank), "")
    missing = tuple(other for other in ranks if other != rank)

    def all_arrived() -> bool:
        nonlocal missing
        missing = ranks_without_key(store, missing)
        return not missing

    own: tuple[str, tuple[int, ...]] = "", ()
    if not wait_until(all_arrived, limit_s, max_pause_s=_MAX_PAUSE_S):
        own = explain_timeout(missing, limit_s), missing
    # The first outcome decides for all ranks: a timeout, or a late arrival.
    why, missing = json.loads(store.compare_set("outcome", "", json.dumps(own)))
    return why, tuple(missing)


@dataclass(frozen=True)
class Decision:
    """A joint decision, true or false as ``value``; ``reasons`` of the ranks that caused it.

    These are the ranks that passed True to ``any``, or False to ``all``; empty if there are none.
    """

    value: bool
    reasons: Mapping[int, str]

    def __bool__(self) -> bool:
        """Return the decision."""
        return self.value

    def __str__(self) -> str:
        """Return ``rank 2: out of memory; rank 5: out of memory``."""
        return "; ".join(f"rank {rank}: {reason}" for rank, reason in self.reasons.items())


@overload
def agree(
    value: float,
    reduce: Literal["any", "all", "min", "max"] = "any",
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> float: ...
@overload
def agree(
    value: float,
    reduce: Literal["any", "all"] = "any",
    group: dist.ProcessGroup | None = None,
    *,
    reason: str,
    timeout: float | str | None = None,
) -> Decision: ...


@suggest_keywords
def agree(
    value: float,
    reduce: Literal["any", "all", "min", "max"] = "any",
    group: dist.ProcessGroup | None = None,
    *,
    reason: str | None = None,
    timeout: float | str | None = None,
) -> float | Decision:
    """Return the joint decision of the group: the same value on every rank.

    ``any`` and ``all`` are for truth values (``agree(out_of_memory)``), ``min`` and ``max`` for
    numbers. With a ``reason`` on all ranks (empty where there is none), the result is a
    :class:`Decision`, which also names the ranks that caused it, and why: those with True for
    ``any``, or with False for ``all``. The reasons are exchanged only if there are such ranks.

    Raises:
        InvalidValue, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    if reduce not in _REDUCTIONS:
        raise InvalidValue(f"reduce: {reduce!r}", why="choose from any, all, min and max")
    is_boolean = reduce in ("any", "all")
    if reason is not None and not is_boolean:
        raise InvalidValue("agree", why=f"{reduce} has no reasons; use any or all")
    own_value = float(bool(value)) if is_boolean else float(value)
    decisive = float(reduce == "any")
    if runs_alone(group):
        if reason is None:
            return bool(own_value) if is_boolean else own_value
        return Decision(bool(own_value), {0: reason} if own_value == decisive else {})
    state = state_of(group)
    shown = f"agree ({reduce}{'' if reason is None else ', reasons'})"
    call = begin_call(state, shown, timeout)
    shared = torch.tensor([own_value], dtype=torch.float64, device=state.device)
    wait_for_works([start_all_reduce(shared, _REDUCTIONS[reduce], state)], call)
    result = shared.item()
    if reason is None:
        return bool(result) if is_boolean else result
    own_reason = reason if own_value == decisive else None
    reasons = _exchange_reasons(own_reason, call) if result == decisive else {}
    return Decision(bool(result), reasons)


def _exchange_reasons(own: str | None, call: BoundedCall) -> dict[int, str]:
    """Return the reason of each rank that has one."""
    store, keys = call.state.store, [call.key(f"reason/{rank}") for rank in call.state.ranks]
    store.set(call.key(f"reason/{dist.get_rank()}"), json.dumps(own))
    poll_until(lambda: store.check(keys), call)
    reasons = zip(call.state.ranks, map(json.loads, store.multi_get(keys)), strict=True)
    return {rank: text for rank, text in reasons if text is not None}
