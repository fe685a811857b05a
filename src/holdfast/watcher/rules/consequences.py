"""Describes the consequences of a root cause: ranks that wait, and ranks that failed after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.causes import by_name
from holdfast.core.findings import Cause, Finding, Level, Subject, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState, RecordedCall
from holdfast.watcher.rules import roots
from holdfast.watcher.rules.hang_case import (
    HangCase,
    call_fact,
    call_text,
    line_text,
    subject_of,
)
from holdfast.watcher.rules.rank_findings import describe_exception
from holdfast.watcher.rules.wait_for_graph import WaitEdges


def list_consequences(case: HangCase, root: Finding) -> tuple[Finding, ...]:
    """Return the consequences of the root: ranks that wait, and ranks that failed after it."""
    cause = by_name(root.cause)
    return (
        *(found for wait in case.graph.waits[:64] for found in _waiting(case, cause, wait, root)),
        *list_failures(tuple(case.ranks.values()), root),
    )


def list_failures(ranks: Sequence[RankState], root: Finding) -> tuple[Finding, ...]:
    """Return the findings about ranks that failed after the root did."""
    dead = [state for state in ranks if roots.died(state) and state.rank != root.subject.rank]
    return tuple(
        make_finding(
            by_name(root.cause),
            f"rank {state.rank} then failed: {_describe_end(state)}",
            level=Level.NOTE,
            subject=Subject(rank=state.rank, host=state.host or None),
            remedies=root.remedies[:1],
        )
        for state in dead[:16]
    )


def _describe_end(state: RankState) -> str:
    if state.raised is not None:
        return describe_exception(state.raised)
    return f"exit status {state.exit_code}"


def _waiting(case: HangCase, cause: Cause, wait: WaitEdges, root: Finding) -> Iterator[Finding]:
    """Describe the waiting ranks: those that made one call together, mismatched calls apart."""
    by_call: dict[str, tuple[RecordedCall, list[int]]] = {}
    for rank in wait.waiters:
        if rank != root.subject.rank:
            call = _own_call(case, rank, wait.operation)
            text = f"{call_text(call, case.groups)}{line_text(call)}"
            by_call.setdefault(text, (call, []))[1].append(rank)
    target = f", waiting for {describe_ranks(wait.awaited)}" if wait.awaited else ""
    for where, (call, ranks) in by_call.items():
        verb = "is" if len(ranks) == 1 else "are"
        yield make_finding(
            cause,
            f"{describe_ranks(ranks)} {verb} blocked in {where}{target}",
            level=Level.NOTE,
            subject=subject_of(case, ranks[0], call),
            evidence=(call_fact(case, ranks[0], call),),
            remedies=root.remedies[:1],
        )


def _own_call(case: HangCase, rank: int, call: RecordedCall) -> RecordedCall:
    """Return what the rank called as that collective of the group; ``call`` if unknown."""
    pending = case.ranks[rank].pending if rank in case.ranks else ()
    return next(
        (
            own
            for own in pending
            if (own.group, own.sequence) == (call.group, call.sequence)
            and own.is_point_to_point == call.is_point_to_point
        ),
        call,
    )
