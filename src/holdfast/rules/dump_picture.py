"""What the dumps of a job show before anybody judges it: who waits for whom, who is inside, who is held by others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.facts.dumps import DumpTable
from holdfast.facts.ranks import Operation, RankState
from holdfast.rules import hang, recorded_calls, waits
from holdfast.rules.meetings import Settled, settle
from holdfast.rules.waits import Wait

#: Above this share of ranks without a dump, their absence tells of how the dumps were collected, not of the job.
MOST_ABSENT = 0.5


@dataclass(frozen=True)
class Picture:
    """The case as all rules know it, with what was found out about the dumps themselves.

    ``stuck``: calls that all members have entered. ``states``: the ranks as their dumps have them, before these were
    set against each other. ``awaited``: for each root the waits in which others wait for it, a collective first, as it
    tells more than a send or receive, and the oldest of them.
    """

    table: DumpTable
    settled: Settled
    case: hang.Case
    stuck: tuple[Wait, ...]
    states: Mapping[int, RankState]
    awaited: Mapping[int, tuple[Wait, ...]]

    def last_call(self, rank: int) -> Operation | None:
        """The newest call that is left in the rank's dump."""
        state = self.states[rank]
        transfers = (call for each in self.table.transfers.get(rank, ()) for call in each.open)
        return max((*state.recent, *state.pending, *transfers), key=lambda call: call.entered, default=None)

    @property
    def stood_s(self) -> float:
        """For how many seconds, by the times in the dumps, the calls in which all are have stood at the least."""
        newest = max(max(state.progress, *(call.completed or 0.0 for call in state.recent), 0.0)
                     for state in self.table.ranks)  # fmt: skip
        calls = {(wait.operation.group, wait.operation.sequence) for wait in self.stuck}
        inside = {rank for wait in self.stuck for rank in wait.waiters}
        entered = max(call.entered for rank in inside for call in self.case.ranks[rank].pending
                      if (call.group, call.sequence) in calls)  # fmt: skip
        return newest - entered


def take(table: DumpTable) -> Picture:
    """The picture that these dumps make."""
    settled = settle(table)
    states = {state.rank: state for state in table.ranks}
    absent = set(range(table.world_size)) - states.keys()
    built = waits.build(settled.ranks, table.groups, table.world_size).waits
    if len(absent) > MOST_ABSENT * table.world_size:
        built = tuple(_without(wait, absent) for wait in built if not wait.awaited or set(wait.awaited) - absent)
    graph = waits.graph([wait for wait in built if wait.awaited])
    case = hang.Case(
        {state.rank: state for state in settled.ranks}, table.groups, table.world_size, {}, graph,
        recorded_calls.parted(table),
    )  # fmt: skip
    stuck = tuple(wait for wait in built if not wait.awaited)
    return Picture(table, settled, case, stuck, states, _awaited(case))


def _without(wait: Wait, absent: set[int]) -> Wait:
    return Wait(wait.operation, wait.waiters, tuple(rank for rank in wait.awaited if rank not in absent))


def _awaited(case: hang.Case) -> Mapping[int, tuple[Wait, ...]]:
    roots = set(case.graph.roots)
    found: dict[int, list[Wait]] = defaultdict(list)
    for wait in sorted(case.graph.waits, key=lambda wait: (wait.operation.is_point_to_point, *waits.age(wait))):
        for rank in roots.intersection(wait.awaited):
            found[rank].append(wait)
    return {rank: tuple(mine) for rank, mine in found.items()}


def held(picture: Picture) -> set[int]:
    """Roots that stand in a call which all its members have entered, and whose peer there waits for another root.

    The call is enqueued on all its ranks and cannot begin: a device works off its calls in order, and the peer's is at
    an earlier one. Where all roots are so, none is let off.
    """
    graph = picture.case.graph
    waiting = {rank for wait in graph.waits for rank in wait.waiters}
    inside = _met(picture, waiting)
    firm = {rank for rank in graph.roots if not inside.get(rank)}
    led_there = waits.reaching(graph.waits, firm) - firm
    return {rank for rank, peers in inside.items() if peers & led_there}


def _met(picture: Picture, waiting: set[int]) -> dict[int, set[int]]:
    """For each root those of ``waiting`` with whom it stands in a call that all members have entered."""
    roots = {rank for rank in picture.case.graph.roots if rank in picture.case.ranks}
    found: dict[int, set[int]] = {rank: set(_met_transfers(picture, rank)) & waiting for rank in roots}
    for wait in picture.stuck:
        peers = waiting.intersection(wait.waiters)
        for rank in roots.intersection(wait.waiters):
            found[rank] |= peers
    return found


def _met_transfers(picture: Picture, rank: int) -> Iterator[int]:
    unmet = {(call.group, call.name, call.peer) for call in picture.case.ranks[rank].pending if call.is_point_to_point}
    for transfer in picture.table.transfers.get(rank, ()):
        if transfer.open and (transfer.group, transfer.name, transfer.peer) not in unmet:
            yield transfer.peer
