"""Input of the rules for hangs, and the texts and subjects that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.findings import Fact, Subject
from holdfast.core.rank_table import ProcessGroupInfo, RankState, RecordedCall
from holdfast.watcher.rules.call_divergence import CallDivergence
from holdfast.watcher.rules.call_sites import SourceContexts
from holdfast.watcher.rules.subjects import rank_subject
from holdfast.watcher.rules.wait_for_graph import STORE_CALLS, WaitGraph


@dataclass(frozen=True)
class HangCase:
    """Input of the rules: ranks, groups, source contexts, and what is derived from them."""

    ranks: Mapping[int, RankState]
    groups: Mapping[str, ProcessGroupInfo]
    world_size: int
    source: SourceContexts
    graph: WaitGraph
    divergence: CallDivergence | None


def call_text(call: RecordedCall, groups: Mapping[str, ProcessGroupInfo]) -> str:
    """Describe a call: ``all_reduce #31``, with its group unless it is the default one."""
    if call.group == "checkpoint":
        return (
            f"the saving or loading of a checkpoint (agreement #{call.sequence} in the job's store)"
        )
    if call.group in STORE_CALLS or call.group.startswith("new_group"):
        return f"{call.name} (the rendezvous store)"
    peer = (
        f" {'to' if call.name == 'send' else 'from'} rank {call.peer}"
        if call.is_point_to_point
        else ""
    )
    return f"{call.name}{peer} #{call.sequence}{_of_group(groups.get(call.group), call.group)}"


def _of_group(group: ProcessGroupInfo | None, name: str) -> str:
    described = group.description if group is not None else ""
    if described == "default_pg":
        return ""
    return f" of group {name!r}" + ("" if described in ("", "undefined") else f" ({described})")


def describe_awaited_call(case: HangCase, rank: int) -> str:
    """Describe the oldest call in which others wait for the rank."""
    waiting = case.graph.waiting_for(rank)
    return (
        call_text(waiting[0].operation, case.groups) if waiting else "the collective of the others"
    )


def line_text(call: RecordedCall) -> str:
    """Return `` at train.py:41``, or an empty text if the call site is unknown."""
    return f" at {call.site.short}" if call.site else ""


def subject_of(case: HangCase, rank: int, call: RecordedCall) -> Subject:
    """Return the rank and the line at which it is in a call of that group."""
    state = case.ranks.get(rank)
    pending = state.pending if state else ()
    line = next((own for own in pending if own.group == call.group), call).site
    return rank_subject(rank, state.host if state else None, line)


def call_fact(case: HangCase, rank: int, call: RecordedCall) -> Fact:
    """Return the fact that the rank is in this call."""
    state = case.ranks.get(rank)
    what = f"{call_text(call, case.groups)}, {call.dtype} {list(call.shape)}{line_text(call)}"
    text = f"in {what}, entered and not completed"
    return Fact(
        text=text,
        origin=f"trace of rank {rank}",
        rank=rank,
        host=(state.host if state else None) or None,
        time=call.entered,
    )
