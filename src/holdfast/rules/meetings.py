"""Which calls in the dumps of several ranks met, and which only look open: what one dump proves about another.

torch notices a completion some time after it happened, and the dumps of a job are not made at one moment. Where a
member completed a collective that none can complete alone, all members were in it and it is over for all.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.facts.dumps import DumpTable
from holdfast.facts.ranks import GroupProgress, Operation, RankState
from holdfast.facts.reduced_dumps import Transfer

#: Collectives between which the sends and receives of two ranks are compared.
MOST_MARKS = 64
#: Collectives that no member can complete before all have entered.
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier", re.IGNORECASE)


@dataclass(frozen=True)
class Settled:
    """The ranks with the calls that are truly open.

    ``silent``: open calls of a rank, the oldest first, that its peers completed, of ranks whose dump is not older than
    theirs. ``late``: ranks of which at least one call was such. ``lag``: group, own number and the others' of ranks
    whose dump ends before calls that the others have completed.
    """

    ranks: tuple[RankState, ...]
    silent: Mapping[int, tuple[Operation, ...]]
    late: frozenset[int]
    lag: Mapping[int, tuple[str, int, int]]


def settle(table: DumpTable) -> Settled:
    """Set the dumps against each other."""
    failed = _timed_out(table)
    over, together = _over(table, {call.group for calls in failed.values() for call in calls})
    unmet = _unmet(table)
    ranks: list[RankState] = []
    silent: dict[int, tuple[Operation, ...]] = {}
    late: set[int] = set()
    lag: dict[int, tuple[str, int, int]] = {}
    for state in table.ranks:
        over_here = {group: over.get(group, {}).get(state.rank, 0) for group in {call.group for call in state.pending}}
        done = [call for call in state.pending if call.sequence <= over_here[call.group]]
        groups = dict(state.groups)
        for group, progress in state.groups.items():
            number = together.get(group, 0)
            if progress.entered < number:
                lag.setdefault(state.rank, (group, progress.entered, number))
                groups[group] = GroupProgress(number, progress.completed)
        if done:
            late.add(state.rank)
            if state.rank not in lag:
                silent[state.rank] = tuple(done)
        left = [call for call in state.pending if call.sequence > over_here[call.group]]
        pending = (*_with_heads(left), *unmet.get(state.rank, ()), *failed.get(state.rank, ()))
        ranks.append(replace(state, pending=pending, groups=groups))
    return Settled(tuple(ranks), silent, frozenset(late), lag)


def _with_heads(calls: list[Operation]) -> Iterator[Operation]:
    """The first open call of each group is certain, what is enqueued behind it is not."""
    seen: set[str] = set()
    for call in calls:
        yield replace(call, certain=call.group not in seen)
        seen.add(call.group)


def _over(table: DumpTable, failed: Container[str]) -> tuple[dict[str, dict[int, int]], dict[str, int]]:
    """For each group, up to which number its calls are over for a rank; and up to which all members have entered.

    Groups whose last call ``failed`` prove nothing.
    """
    mixed = {transfer.group for mine in table.transfers.values() for transfer in mine}
    over: dict[str, dict[int, int]] = defaultdict(dict)
    together: dict[str, int] = {}
    completed: dict[str, dict[int, int]] = defaultdict(dict)
    for state in table.ranks:
        for group, progress in state.groups.items():
            # Where a group has sends and receives, its status counts both: only the calls themselves can be believed.
            if group not in failed and (group not in mixed or state.rank in table.histories.get(group, {})):
                completed[group][state.rank] = progress.completed
    for group, numbers in completed.items():
        known = table.groups[group].ranks
        proven = _proven(table, group, max(numbers.values(), default=0))
        if proven:
            together[group] = proven
        lowest = sorted(numbers.values())[:2]
        all_known = known is not None and len(numbers) >= len(known)
        for rank, number in numbers.items():
            # What all others have completed: the lowest number, or the second where the lowest is its own.
            others = lowest[number == lowest[0]] if len(lowest) > 1 else 0
            over[group][rank] = max(proven, others if all_known else 0)
    return over, together


def _proven(table: DumpTable, group: str, number: int) -> int:
    """``number`` where that call completes for all members or none, else the last one before it that does.

    Of dumps of open calls alone, that call is gone; a group of which all known calls are such is believed to make no
    others.
    """
    made = set[int]().union(*(history.calls for history in table.histories.get(group, {}).values())) - {0}
    if made and all(_TOGETHER.search(table.calls[place].name) for place in made):
        return number
    for at in range(number, max(0, number - 64), -1):
        for history in table.histories.get(group, {}).values():
            place = at - history.first
            if 0 <= place < len(history.calls) and history.calls[place]:
                if _TOGETHER.search(table.calls[history.calls[place]].name):
                    return at
                break
    return 0


def _unmet(table: DumpTable) -> dict[int, tuple[Operation, ...]]:
    """The open sends and receives of each rank that its peer has not posted the other side of."""
    sides = {(rank, each.group, each.name, each.peer): each for rank, mine in table.transfers.items() for each in mine}
    present = {state.rank for state in table.ranks}
    last = {(rank, each.group): each.last for rank, mine in table.transfers.items() for each in mine}
    found: dict[int, tuple[Operation, ...]] = defaultdict(tuple)
    for (rank, group, name, peer), mine in sides.items():
        theirs = sides.get((peer, group, "recv" if name == "send" else "send", rank))
        members = table.groups[group].ranks or ()
        reached = last.get((peer, group), 0) if len(members) == 2 else None
        if mine.open and peer in present:
            found[rank] += _without_partner(mine, theirs, reached)
        elif mine.open:
            found[rank] += mine.open
    return found


def _without_partner(mine: Transfer, theirs: Transfer | None, reached: int | None) -> tuple[Operation, ...]:
    """The last of the open calls, as many as the peer lacks.

    Both rings whole: the calls are counted. A group of two: each call has the same number on both sides, and the peer
    has ``reached`` one. Else those after a collective that both remember are counted; where there is none, the open
    ones of either side are set against each other.
    """
    if theirs is not None and mine.whole and theirs.whole:
        lacking = mine.count - theirs.count
    elif theirs is None and mine.whole:
        lacking = len(mine.open)
    elif reached is not None and reached:
        return tuple(call for call in mine.open if call.sequence > reached)
    elif theirs is not None and (common := _since_the_same(mine, theirs)) is not None:
        lacking = common
    else:
        lacking = len(mine.open) - (len(theirs.open) if theirs else 0)
    return mine.open[max(len(mine.open) - lacking, 0) :] if lacking > 0 else ()


def _since_the_same(mine: Transfer, theirs: Transfer) -> int | None:
    """How many more there are of ``mine`` than of ``theirs`` since the same collective; None where none is common.

    One that a rank called before a collective, and its peer after it, counts on one side only: the collective at which
    the two are nearest is taken.
    """
    if not mine.anchor or mine.anchor != theirs.anchor:
        return None
    marks = range(max(mine.since, theirs.since), mine.after[-1] + 1)[-MOST_MARKS:]
    counted = (
        len(mine.after) - bisect_left(mine.after, at) - len(theirs.after) + bisect_left(theirs.after, at)
        for at in marks
    )
    return min(counted, key=abs, default=None)


def _timed_out(table: DumpTable) -> dict[int, tuple[Operation, ...]]:
    """On gloo, calls that look finished and cannot be: a member never entered them, and nobody went on afterwards."""
    if any(state.pending for state in table.ranks):
        return {}
    found: dict[int, tuple[Operation, ...]] = defaultdict(tuple)
    for name, group in table.groups.items():
        entered = {state.rank: state.groups[name].entered for state in table.ranks if name in state.groups}
        newest = max(entered.values(), default=0)
        members = group.ranks or tuple(entered)
        lacking = [rank for rank in members if entered.get(rank, 0) == newest - 1]
        inside = [rank for rank in members if entered.get(rank, 0) == newest]
        if group.backend != "gloo" or not lacking or len(lacking) + len(inside) != len(members):
            continue
        calls = [(rank, _recent(table, rank, name, newest)) for rank in inside]
        if all(call is not None and not call.certain and _TOGETHER.search(call.name) for _, call in calls):
            for rank, call in calls:
                if call is not None:
                    found[rank] += (replace(call, completed=None, failed=True, certain=True),)
    return found


def _recent(table: DumpTable, rank: int, group: str, number: int) -> Operation | None:
    recent = next(state.recent for state in table.ranks if state.rank == rank)
    return next((call for call in recent if (call.group, call.sequence) == (group, number)), None)
