"""The wait-for graph: who waits in which call, for whom, and where every chain of waiting ends.

A rank inside collective n of a group waits for each member that has not entered n; a receive waits for its sender, a
send for its receiver. The graph has two kinds of nodes, ranks and calls, so that a group of 16,384 costs 16,384 edges
and not their square. Ranks that are waited for and wait for nobody are the roots; a chain without a root ends in a
cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.facts.ranks import Group, Operation, RankState

#: Calls that wait in the rendezvous store for every rank of the job, not in a communicator.
STORE_CALLS = frozenset({"init_process_group", "new_group", "checkpoint"})


@dataclass(frozen=True)
class Wait:
    """One call that does not complete: the ranks inside it, those it waits for, the call as the first rank sees it."""

    operation: Operation
    waiters: tuple[int, ...]
    awaited: tuple[int, ...]


@dataclass(frozen=True)
class WaitGraph:
    """All waits, with the roots (best first is up to the caller) and one cycle, its ranks and waits in order."""

    waits: tuple[Wait, ...]
    roots: tuple[int, ...]
    cycle: tuple[tuple[int, Wait], ...]

    def waiting_for(self, rank: int) -> tuple[Wait, ...]:
        """The waits in which others wait for ``rank``, the oldest first."""
        return tuple(sorted((wait for wait in self.waits if rank in wait.awaited), key=age))


def age(wait: Wait) -> tuple[float, int]:
    """Sorts waits: the oldest first, and of equal ones the one that waits for fewest."""
    return wait.operation.entered, len(wait.awaited)


def build(ranks: Sequence[RankState], groups: Mapping[str, Group], world_size: int) -> WaitGraph:
    """The wait-for graph of the pending calls of ``ranks``."""
    return graph((*_collectives(ranks, groups, world_size), *_point_to_point(ranks)))


def graph(waits: Sequence[Wait]) -> WaitGraph:
    """The wait-for graph of these waits."""
    waiting = {rank for wait in waits for rank in wait.waiters}
    awaited = {rank for wait in waits for rank in wait.awaited}
    roots = tuple(sorted(awaited - waiting))
    return WaitGraph(tuple(waits), roots, _cycle(waits, roots))


def members_of(name: str, groups: Mapping[str, Group], world_size: int) -> tuple[int, ...] | None:
    """The ranks of a group; None where nobody wrote them down."""
    group = groups.get(name)
    if group is not None and group.ranks is not None:
        return group.ranks
    if name in STORE_CALLS:
        return tuple(range(world_size))
    if name.startswith("new_group of "):
        return tuple(int(rank) for rank in name.removeprefix("new_group of ").split(","))
    return None


def _collectives(ranks: Sequence[RankState], groups: Mapping[str, Group], world_size: int) -> Iterable[Wait]:
    inside: dict[tuple[str, int], list[tuple[int, Operation]]] = defaultdict(list)
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
        certain = any(call.certain for _, call in calls)  # one rank's flight recorder may have answered, another's not
        if not awaited and not certain:
            continue  # everybody entered, and this backend does not tell whether it completed
        if awaited and name in behind and not certain:
            continue  # the host ran ahead: what it waits in is the first call that somebody lacks
        behind.add(name)
        yield Wait(calls[0][1], tuple(rank for rank, _ in calls), awaited)


def _point_to_point(ranks: Sequence[RankState]) -> Iterable[Wait]:
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
            met = (call.peer, other, state.rank, call.tag) in posted or (call.peer, other, None, call.tag) in posted
            yield Wait(call, (state.rank,), () if met else (call.peer,))


def _cycle(waits: Sequence[Wait], roots: Sequence[int]) -> tuple[tuple[int, Wait], ...]:
    """One cycle among the ranks from which no root can be reached: follow any edge until a rank comes up again."""
    free = reaching(waits, roots)
    onward: dict[int, tuple[Wait, int]] = {}
    for wait in waits:
        for rank in wait.waiters:
            target = next((other for other in wait.awaited if other not in free), None)
            if rank not in free and target is not None:
                onward.setdefault(rank, (wait, target))
    for start in onward:
        path: list[tuple[int, Wait]] = []
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


def reaching(waits: Sequence[Wait], roots: Iterable[int]) -> set[int]:
    """Ranks whose waiting is explained: they are roots, or wait for somebody whose waiting is explained."""
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
