"""Match the calls in the dumps of several ranks: which are really open, and which only look open.

torch records a completion some time after it happened, and the dumps of a job are not written at
one moment. If one member completed a collective that no member can complete alone, every member has
entered it, and it is over for all.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.core.rank_table import GroupProgress, RankState, RecordedCall
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.dumps.reduced_dumps import PeerTransfers

#: Collectives after which the point-to-point calls of two ranks are compared.
MAX_ANCHORS = 64
#: Calls to search backwards for the last synchronizing collective.
_MAX_SEARCHED = 64
#: Collectives that no member can complete before all have entered.
_SYNCHRONIZING = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier", re.IGNORECASE)

_CallsByRank = dict[int, tuple[RecordedCall, ...]]


@dataclass(frozen=True)
class MatchedCalls:
    """The ranks with the calls that are really open.

    ``unreported``: open calls of a rank, oldest first, that its peers completed, if its dump is not
    older than theirs. ``late``: ranks with at least one such call. ``behind``: group, own number
    and the others' number of ranks whose dump ends before calls that the others have completed.
    """

    ranks: tuple[RankState, ...]
    unreported: Mapping[int, tuple[RecordedCall, ...]]
    late: frozenset[int]
    behind: Mapping[int, tuple[str, int, int]]


def match_calls(table: DumpTable) -> MatchedCalls:
    """Match the calls in the dumps against each other."""
    failed = _timed_out_calls(table)
    over, entered_by_all = _finished_numbers(
        table, {call.group for calls in failed.values() for call in calls}
    )
    unmatched = _unmatched_transfers(table)
    ranks: list[RankState] = []
    unreported: _CallsByRank = {}
    late: set[int] = set()
    behind: dict[int, tuple[str, int, int]] = {}
    for state in table.ranks:
        rank = state.rank
        groups = dict(state.groups)
        for group, progress in state.groups.items():
            number = entered_by_all.get(group, 0)
            if progress.entered < number:
                behind.setdefault(rank, (group, progress.entered, number))
                groups[group] = GroupProgress(number, progress.completed)
        done: list[RecordedCall] = []
        still_open: list[RecordedCall] = []
        for call in state.pending:
            is_over = call.sequence <= over.get(call.group, {}).get(rank, 0)
            (done if is_over else still_open).append(call)
        if done:
            late.add(rank)
            if rank not in behind:
                unreported[rank] = tuple(done)
        pending = (*_mark_certain(still_open), *unmatched.get(rank, ()), *failed.get(rank, ()))
        ranks.append(replace(state, pending=pending, groups=groups))
    return MatchedCalls(tuple(ranks), unreported, frozenset(late), behind)


def _mark_certain(calls: list[RecordedCall]) -> Iterator[RecordedCall]:
    """Mark the first open call of each group as certain; calls enqueued after it are not."""
    groups: set[str] = set()
    for call in calls:
        yield replace(call, certain=call.group not in groups)
        groups.add(call.group)


def _finished_numbers(
    table: DumpTable, failed: Container[str]
) -> tuple[dict[str, dict[int, int]], dict[str, int]]:
    """Return up to which number calls are over (by group and rank) and entered by all (by group).

    Groups in ``failed``, whose last call failed, prove nothing.
    """
    mixed = {transfers.group for listed in table.transfers.values() for transfers in listed}
    completed: dict[str, dict[int, int]] = defaultdict(dict)
    for state in table.ranks:
        for group, progress in state.groups.items():
            # The status of a group with point-to-point calls counts these too: use recorded calls.
            if group not in failed and (
                group not in mixed or state.rank in table.histories.get(group, {})
            ):
                completed[group][state.rank] = progress.completed
    over: dict[str, dict[int, int]] = defaultdict(dict)
    entered_by_all: dict[str, int] = {}
    for group, numbers in completed.items():
        members = table.groups[group].ranks
        proven = _last_synchronizing(table, group, max(numbers.values(), default=0))
        if proven:
            entered_by_all[group] = proven
        lowest = sorted(numbers.values())[:2]
        all_known = members is not None and len(numbers) >= len(members)
        for rank, number in numbers.items():
            # Completed by all others: the lowest number, or the second if the lowest is its own.
            others = lowest[number == lowest[0]] if len(lowest) > 1 else 0
            over[group][rank] = max(proven, others if all_known else 0)
    return over, entered_by_all


def _last_synchronizing(table: DumpTable, group: str, number: int) -> int:
    """Return the last number up to ``number`` whose call completes for all members or for none.

    A dump of open calls only does not contain that call: if all known calls of the group are
    synchronizing, the group is assumed to make no others.
    """
    histories = table.histories.get(group, {}).values()
    known = set[int]().union(*(history.calls for history in histories)) - {0}
    if known and all(_SYNCHRONIZING.search(table.calls[index].name) for index in known):
        return number
    for candidate in range(number, max(0, number - _MAX_SEARCHED), -1):
        for history in histories:
            offset = candidate - history.first
            if 0 <= offset < len(history.calls) and history.calls[offset]:
                if _SYNCHRONIZING.search(table.calls[history.calls[offset]].name):
                    return candidate
                break
    return 0


def _unmatched_transfers(table: DumpTable) -> _CallsByRank:
    """Return the open sends and receives of each rank whose peer has not posted its side."""
    sides = {
        (rank, transfers.group, transfers.name, transfers.peer): transfers
        for rank, listed in table.transfers.items()
        for transfers in listed
    }
    last = {(rank, group): transfers.last for (rank, group, _, _), transfers in sides.items()}
    present = {state.rank for state in table.ranks}
    found: _CallsByRank = defaultdict(tuple)
    for (rank, group, name, peer), own in sides.items():
        if not own.open:
            continue
        if peer not in present:
            found[rank] += own.open
            continue
        other = sides.get((peer, group, "recv" if name == "send" else "send", rank))
        members = table.groups[group].ranks or ()
        reached = last.get((peer, group), 0) if len(members) == 2 else 0
        found[rank] += _without_partner(own, other, reached)
    return found


def _without_partner(
    own: PeerTransfers, other: PeerTransfers | None, reached: int
) -> tuple[RecordedCall, ...]:
    """Return the last open calls, as many as the peer lacks.

    If both ring buffers are complete, all calls are counted. In a group of two, a call has the same
    number on both sides, and the peer has ``reached`` a number (0: unknown). Otherwise calls after
    a collective that both have recorded are counted, or else the open calls of both sides.
    """
    if other is not None and own.whole and other.whole:
        lacking = own.count - other.count
    elif other is None and own.whole:
        lacking = len(own.open)
    elif reached:
        return tuple(call for call in own.open if call.sequence > reached)
    elif other is not None and (surplus := _surplus_since_anchor(own, other)) is not None:
        lacking = surplus
    else:
        lacking = len(own.open) - (len(other.open) if other else 0)
    return own.open[max(len(own.open) - lacking, 0) :] if lacking > 0 else ()


def _surplus_since_anchor(own: PeerTransfers, other: PeerTransfers) -> int | None:
    """Return how many more calls ``own`` has since a common collective; None without one.

    A call made before a collective on one rank and after it on its peer is counted on one side
    only, so the collective with the smallest difference is used.
    """
    if not own.anchor or own.anchor != other.anchor:
        return None
    anchors = range(max(own.since, other.since), own.after[-1] + 1)[-MAX_ANCHORS:]
    surpluses = (
        len(own.after)
        - bisect_left(own.after, anchor)
        - len(other.after)
        + bisect_left(other.after, anchor)
        for anchor in anchors
    )
    return min(surpluses, key=abs, default=None)


def _timed_out_calls(table: DumpTable) -> _CallsByRank:
    """Return gloo's calls that look finished but cannot be.

    A member never entered such a call, and no rank made another one after it.
    """
    if any(state.pending for state in table.ranks):
        return {}
    found: _CallsByRank = defaultdict(tuple)
    for name, group in table.groups.items():
        entered = {
            state.rank: state.groups[name].entered for state in table.ranks if name in state.groups
        }
        newest = max(entered.values(), default=0)
        members = group.ranks or tuple(entered)
        lacking = [rank for rank in members if entered.get(rank, 0) == newest - 1]
        inside = [rank for rank in members if entered.get(rank, 0) == newest]
        if group.backend != "gloo" or not lacking or len(lacking) + len(inside) != len(members):
            continue
        calls = {rank: _recent_call(table, rank, name, newest) for rank in inside}
        if all(
            call is not None and not call.certain and _SYNCHRONIZING.search(call.name)
            for call in calls.values()
        ):
            for rank, call in calls.items():
                if call is not None:
                    found[rank] += (replace(call, completed=None, failed=True, certain=True),)
    return found


def _recent_call(table: DumpTable, rank: int, group: str, number: int) -> RecordedCall | None:
    recent = next(state.recent for state in table.ranks if state.rank == rank)
    return next((call for call in recent if (call.group, call.sequence) == (group, number)), None)
