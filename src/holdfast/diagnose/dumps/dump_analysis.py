"""Derive from the dumps of a job which rank waits for which, before any rule judges it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.core.rank_table import RankState, RecordedCall
from holdfast.diagnose.dumps.call_comparison import find_divergence
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.dumps.matching import MatchedCalls, match_calls
from holdfast.watcher.rules import hang_case, wait_for_graph
from holdfast.watcher.rules.call_divergence import CallDivergence
from holdfast.watcher.rules.wait_for_graph import WaitEdges

#: If a larger share of ranks has no dump, their absence says nothing about the job.
MAX_ABSENT_SHARE = 0.5


@dataclass(frozen=True)
class DumpAnalysis:
    """The hang case in the form of all rules, with what is known about the dumps themselves.

    ``complete``: open calls that all members have entered. ``states``: the ranks as recorded,
    before their calls were matched. ``awaited``: for each root the waits of other ranks for it,
    collectives first, because they say more than point-to-point calls, then oldest first.
    """

    table: DumpTable
    matched: MatchedCalls
    case: hang_case.HangCase
    divergence: CallDivergence | None
    complete: tuple[WaitEdges, ...]
    states: Mapping[int, RankState]
    awaited: Mapping[int, tuple[WaitEdges, ...]]

    def last_call(self, rank: int) -> RecordedCall | None:
        """Return the newest call in the rank's dump."""
        state = self.states[rank]
        transfers = (call for each in self.table.transfers.get(rank, ()) for call in each.open)
        return max(
            (*state.recent, *state.pending, *transfers), key=lambda call: call.entered, default=None
        )

    @property
    def complete_for_s(self) -> float:
        """For how long, at least, all members have been in the calls of ``complete``."""
        newest = max(
            max(state.progress, *(call.completed or 0.0 for call in state.recent), 0.0)
            for state in self.table.ranks
        )
        calls = {(wait.operation.group, wait.operation.sequence) for wait in self.complete}
        inside = {rank for wait in self.complete for rank in wait.waiters}
        entered = max(
            call.entered
            for rank in inside
            for call in self.case.ranks[rank].pending
            if (call.group, call.sequence) in calls
        )
        return newest - entered


def analyze_dumps(table: DumpTable) -> DumpAnalysis:
    """Match the calls of all dumps and build the wait-for graph."""
    matched = match_calls(table)
    states = {state.rank: state for state in table.ranks}
    absent = set(range(table.world_size)) - states.keys()
    waits = wait_for_graph.build_wait_graph(matched.ranks, table.groups, table.world_size).waits
    if len(absent) > MAX_ABSENT_SHARE * table.world_size:
        waits = tuple(
            _without_ranks(wait, absent)
            for wait in waits
            if not wait.awaited or set(wait.awaited) - absent
        )
    divergence = find_divergence(table)
    case = hang_case.HangCase(
        {state.rank: state for state in matched.ranks},
        table.groups,
        table.world_size,
        {},
        wait_for_graph.build_graph([wait for wait in waits if wait.awaited]),
        divergence,
    )
    complete = tuple(wait for wait in waits if not wait.awaited)
    return DumpAnalysis(table, matched, case, divergence, complete, states, _waits_for_roots(case))


def _without_ranks(wait: WaitEdges, absent: set[int]) -> WaitEdges:
    awaited = tuple(rank for rank in wait.awaited if rank not in absent)
    return WaitEdges(wait.operation, wait.waiters, awaited)


def _waits_for_roots(case: hang_case.HangCase) -> Mapping[int, tuple[WaitEdges, ...]]:
    roots = set(case.graph.roots)
    found: dict[int, list[WaitEdges]] = defaultdict(list)
    for wait in sorted(
        case.graph.waits,
        key=lambda wait: (wait.operation.is_point_to_point, *wait_for_graph.wait_age(wait)),
    ):
        for rank in roots.intersection(wait.awaited):
            found[rank].append(wait)
    return {rank: tuple(waits) for rank, waits in found.items()}


def find_held_roots(analysis: DumpAnalysis) -> set[int]:
    """Return the roots in a call that all members have entered, with a peer that waits elsewhere.

    The call is enqueued on all of its ranks and cannot start: a device executes calls in order, and
    the peer's device is at an earlier call, which waits for another root. If this applies to all
    roots, none is returned.
    """
    graph = analysis.case.graph
    waiting = {rank for wait in graph.waits for rank in wait.waiters}
    waiting_peers = _waiting_peers(analysis, waiting)
    firm = {rank for rank in graph.roots if not waiting_peers.get(rank)}
    wait_for_firm = wait_for_graph.explained_ranks(graph.waits, firm) - firm
    return {rank for rank, peers in waiting_peers.items() if peers & wait_for_firm}


def _waiting_peers(analysis: DumpAnalysis, waiting: set[int]) -> dict[int, set[int]]:
    """Return for each root its peers among ``waiting`` in calls that all members have entered."""
    roots = {rank for rank in analysis.case.graph.roots if rank in analysis.case.ranks}
    found = {rank: set(_matched_peers(analysis, rank)) & waiting for rank in roots}
    for wait in analysis.complete:
        peers = waiting.intersection(wait.waiters)
        for rank in roots.intersection(wait.waiters):
            found[rank] |= peers
    return found


def _matched_peers(analysis: DumpAnalysis, rank: int) -> Iterator[int]:
    """Yield the peers of open point-to-point calls that have posted their side."""
    unmatched = {
        (call.group, call.name, call.peer)
        for call in analysis.case.ranks[rank].pending
        if call.is_point_to_point
    }
    for transfers in analysis.table.transfers.get(rank, ()):
        if transfers.open and (transfers.group, transfers.name, transfers.peer) not in unmatched:
            yield transfers.peer
