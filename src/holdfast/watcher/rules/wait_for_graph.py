"""The wait-for graph: which rank waits in which call for whom, and where each chain of waits ends.

A rank inside collective n of a group waits for each member that has not entered n; a receive waits
for its sender, a send for its receiver. The graph has two kinds of nodes, ranks and calls, so that
a group of 16,384 ranks costs 16,384 edges and not their square. Ranks that others wait for and that
wait for no rank are the roots; a chain without a root ends in a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.rank_table import ProcessGroupInfo, RankState, RecordedCall

#: Calls that wait in the rendezvous store for every rank of the job, not in a communicator.
STORE_CALLS = frozenset({"init_process_group", "new_group", "checkpoint"})


@dataclass(frozen=True)
class WaitEdges:
    """A call that does not complete, as its first rank recorded it: waiting and awaited ranks."""

    operation: RecordedCall
    waiters: tuple[int, ...]
    awaited: tuple[int, ...]


@dataclass(frozen=True)
class WaitGraph:
    """All waits, the roots in rank order, and one cycle as (rank, wait) in order."""

    waits: tuple[WaitEdges, ...]
    roots: tuple[int, ...]
    cycle: tuple[tuple[int, WaitEdges], ...]

    def waiting_for(self, rank: int) -> tuple[WaitEdges, ...]:
        """Return the waits in which others wait for ``rank``, the oldest first."""
        return tuple(sorted((wait for wait in self.waits if rank in wait.awaited), key=wait_age))


def wait_age(wait: WaitEdges) -> tuple[float, int]:
    """Return the sort key of waits: the oldest first, then the one that awaits the fewest ranks."""
    return wait.operation.entered, len(wait.awaited)


def build_wait_graph(
    ranks: Sequence[RankState], groups: Mapping[str, ProcessGroupInfo], world_size: int
) -> WaitGraph:
    """Build the wait-for graph of the pending calls of ``ranks``."""
    return build_graph((*_collectives(ranks, groups, world_size), *_point_to_point(ranks)))


def build_graph(waits: Sequence[WaitEdges]) -> WaitGraph:
    """Build the wait-for graph of these waits."""
    waiting = {rank for wait in waits for rank in wait.waiters}
    awaited = {rank for wait in waits for rank in wait.awaited}
    roots = tuple(sorted(awaited - waiting))
    return WaitGraph(tuple(waits), roots, _cycle(waits, roots))


def members_of(
    name: str, groups: Mapping[str, ProcessGroupInfo], world_size: int
) -> tuple[int, ...] | None:
    """Return the ranks of a group; None if they were not recorded."""
    group = groups.get(name)
    if group is not None and group.ranks is not None:
        return group.ranks
    if name in STORE_CALLS:
        return tuple(range(world_size))
    if name.startswith("new_group of "):
        return tuple(int(rank) for rank in name.removeprefix("new_group of ").split(","))
    return None


def _collectives(
    ranks: Sequence[RankState], groups: Mapping[str, ProcessGroupInfo], world_size: int
) -> Iterable[WaitEdges]:
    inside: dict[tuple[str, int], list[tuple[int, RecordedCall]]] = defaultdict(list)
    entered: dict[str, dict[int, int]] = defaultdict(dict)
    for state in ranks:
        for name, progress in state.groups.items():
            entered[name][state.rank] = progress.entered
        for operation in state.pending:
            if not operation.is_point_to_point and operation.name != "destroy_process_group":
                inside[operation.group, operation.sequence].append((state.rank, operation))
    behind: set[str] = set()
    for (name, sequence), calls in sorted(inside.items(), key=lambda item: item[0][1]):
        members = members_of(name, groups, world_size) or tuple(entered[name])
        reached = entered[name]
        awaited = tuple(rank for rank in members if reached.get(rank, 0) < sequence)
        # The flight recorder of one rank may have been read, that of another not.
        certain = any(call.certain for _, call in calls)
        if not awaited and not certain:
            continue  # all ranks entered, and this backend does not report completion
        if awaited and name in behind and not certain:
            continue  # the host ran ahead: the rank waits in the first call that a member lacks
        behind.add(name)
        yield WaitEdges(calls[0][1], tuple(rank for rank, _ in calls), awaited)


def _point_to_point(ranks: Sequence[RankState]) -> Iterable[WaitEdges]:
    posted = {
        (state.rank, call.name.removesuffix("_any_source"), call.peer, call.tag)
        for state in ranks
        for call in state.pending
        if call.is_point_to_point
    }
    for state in ranks:
        for call in state.pending:
            if not call.is_point_to_point or call.peer is None or not call.certain:
                continue
            other = "recv" if call.name == "send" else "send"
            matched = any(
                (call.peer, other, source, call.tag) in posted for source in (state.rank, None)
            )
            yield WaitEdges(call, (state.rank,), () if matched else (call.peer,))


def _cycle(waits: Sequence[WaitEdges], roots: Sequence[int]) -> tuple[tuple[int, WaitEdges], ...]:
    """Find a cycle among the ranks that reach no root: follow any edge until a rank repeats."""
    free = explained_ranks(waits, roots)
    onward: dict[int, tuple[WaitEdges, int]] = {}
    for wait in waits:
        for rank in wait.waiters:
            target = next((other for other in wait.awaited if other not in free), None)
            if rank not in free and target is not None:
                onward.setdefault(rank, (wait, target))
    for start in onward:
        path: list[tuple[int, WaitEdges]] = []
        position: dict[int, int] = {}
        rank = start
        while rank in onward and rank not in position:
            position[rank] = len(path)
            wait, target = onward[rank]
            path.append((rank, wait))
            rank = target
        if rank in position:
            return tuple(path[position[rank] :])
    return ()


def explained_ranks(waits: Sequence[WaitEdges], roots: Iterable[int]) -> set[int]:
    """Return the ranks whose waiting is explained: roots, and ranks that wait for such a rank."""
    explained = set(roots)
    open_waits = list(waits)
    grew = True
    while grew:
        grew = False
        still_open = []
        for wait in open_waits:
            if explained.isdisjoint(wait.awaited):
                still_open.append(wait)
            elif not explained.issuperset(wait.waiters):
                explained.update(wait.waiters)
                grew = True
        open_waits = still_open
    return explained
