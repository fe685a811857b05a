"""Where ranks meet without moving data: a barrier in the job's store, and a decision that all take alike."""

from __future__ import annotations

import time
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.errors import BadValue, CollectiveTimeout
from holdfast.report.text import duration
from holdfast.runtime.comm import limits
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.presence import say_missing
from holdfast.runtime.comm.waiting import begin, finish

#: Between two looks at the store: short at first, so that ranks that come together do not wait for each other's sleep.
_SHORTEST_S, _LONGEST_S = 0.001, 0.25

_REDUCTIONS = {
    "any": dist.ReduceOp.MAX, "all": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
}  # fmt: skip
_met: dict[tuple[int, str], int] = {}


def barrier(name: str, timeout: float | str | None = None) -> None:
    """Wait until every rank of the job has come to the barrier ``name``, through the store alone.

    No communicator is used, so that it works where one is broken. The same name may be used again and again.

    Raises:
        BadValue: ``timeout`` is no time.
        CollectiveTimeout: ranks did not come within it; it names them.
    """
    state = state_of(None, broken_too=True)
    members = state.ranks
    rank = dist.get_rank()
    round_of = _met[state.epoch, name] = _met.get((state.epoch, name), 0) + 1
    store = PrefixStore(f"barrier/{name}/{round_of}", state.store)
    store.set(str(rank), "")
    waiting = set(members) - {rank}
    limit_s = limits.limit_s(state, 0, timeout=timeout)
    until, pause = time.monotonic() + limit_s, _SHORTEST_S
    while waiting := {other for other in waiting if not store.check([str(other)])}:
        left = until - time.monotonic()
        if left <= 0:
            absent = tuple(sorted(waiting))
            why = f"{say_missing(absent)} did not come within {duration(limit_s)}"
            raise CollectiveTimeout(f"barrier {name!r}", why=why, missing=absent)
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_S)


def agree(
    value: float,
    reduce: Literal["any", "all", "min", "max"] = "any",
    group: dist.ProcessGroup | None = None,
    *,
    timeout: float | str | None = None,
) -> float:
    """What all ranks of the group decide together: every rank gets the same answer, before any of them acts.

    ``any`` and ``all`` are for truth values (``agree(out_of_memory)``), ``min`` and ``max`` for numbers.

    Raises:
        BadValue, CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    if reduce not in _REDUCTIONS:
        raise BadValue(f"agree was asked for {reduce!r}", why="it knows any, all, min and max")
    state = state_of(group)
    call = begin(state, f"agree ({reduce})", timeout)
    given = float(bool(value)) if reduce in ("any", "all") else float(value)
    shared = torch.tensor([given], dtype=torch.float64, device=state.device)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(_REDUCTIONS[reduce])
    finish([state.group.allreduce([shared], options)], call)
    return bool(shared.item()) if reduce in ("any", "all") else shared.item()
