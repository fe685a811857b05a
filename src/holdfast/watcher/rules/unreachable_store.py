"""Explains ranks that cannot connect to the rendezvous store: the script changed its address."""

from __future__ import annotations

import re

from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.core.findings import Finding, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState
from holdfast.watcher.rules.hang_case import HangCase, call_fact, line_text, subject_of
from holdfast.watcher.rules.rank_findings import stack_facts
from holdfast.watcher.rules.ruled_out import is_one_host

_CONNECTS = re.compile(r"/torch/distributed/rendezvous\.py:_create_c10d_store$")


def explain_unreachable_store(case: HangCase) -> list[Finding]:
    """Explain ranks inside ``init_process_group`` that still connect, after all have entered it.

    The launcher's store runs before the ranks start. Without the launcher's store, rank 0 waits
    there for the others.
    """
    wait = next((each for each in case.graph.waits if not each.awaited), None)
    if wait is None or wait.operation.name != "init_process_group":
        return []
    ranks = [rank for rank in wait.waiters if _is_connecting(case.ranks[rank])]
    if 1 < len(ranks) < len(wait.waiters):
        ranks = [rank for rank in ranks if rank != 0]
    if not ranks:
        return []
    first = ranks[0]
    call = next(each for each in case.ranks[first].pending if each.group == wait.operation.group)
    message = (
        f"{describe_ranks(ranks)} cannot connect to the rendezvous store in init_process_group"
        f"{line_text(call)}: no store listens at the address that the script uses (MASTER_ADDR and "
        "MASTER_PORT, or init_method)"
    )
    if not is_one_host(case.ranks.values(), case.world_size):
        message += ", or this host cannot reach it"
    return [
        make_finding(
            MASTER_UNREACHABLE,
            message,
            subject=subject_of(case, first, call),
            evidence=(call_fact(case, first, call), *stack_facts(case.ranks[first])),
            confidence=0.85,
        )
    ]


def _is_connecting(state: RankState) -> bool:
    """Return whether the newest stack of the rank creates the store."""
    return any(
        _CONNECTS.search(f"{frame.file}:{frame.function}")
        for stack in state.stacks[-1:]
        for frame in stack.frames
    )
