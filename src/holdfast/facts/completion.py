"""What a dump of the flight recorder tells of a rank's calls on NCCL: which are over, and which one it waits in.

A box knows what a rank's host entered; on NCCL only the flight recorder knows how far the device got. The two are
joined by the group's name and the number of the call, and only where both counted as many calls: a block of coalesced
calls is one to NCCL and several to the box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.facts.flight_recorder import Dump
from holdfast.facts.ranks import GroupProgress, Operation, RankState
from holdfast.facts.recorded_entries import Entry

#: Finds a collective of the rank by group and number, where the box still remembers it.
Find = Callable[[str, int], Operation | None]


class GroupCompletion(msgspec.Struct, frozen=True, gc=False):
    """How many collectives of a group were enqueued, and the first that is not over; None where all are."""

    enqueued: int
    first_open: int | None


def by_group(entries: Iterable[Entry]) -> dict[str, GroupCompletion]:
    """For each group in the entries, how far its collectives are."""
    over: dict[str, dict[int, bool]] = {}
    for entry in entries:
        if not entry.is_point_to_point and entry.collective_sequence > 0:
            # The entries of a coalesced block share a number, and the last of them, which closes it, has the state.
            over.setdefault(entry.group, {})[entry.collective_sequence] = entry.finished
    return {
        group: GroupCompletion(max(numbers), min((at for at, done in numbers.items() if not done), default=None))
        for group, numbers in over.items()
    }


def newest(dump: Dump, now: float) -> float:
    """Unix time at which torch's watchdog last saw a call complete; 0.0 where it saw none, or the time cannot be.

    Of calls that the watchdog has not retired yet the dump says when it was made itself, which is no progress.
    """
    times = (entry.completed for entry in dump.entries if entry.retired and entry.completed is not None)
    return max((time for time in times if time <= now), default=0.0)


def settle(state: RankState, dump: Dump, find: Find) -> RankState:
    """``state`` with what the dump knows of its collectives, where it counted as many of them as the box.

    Calls that are over are no longer pending. The first that is not is certain: the rank waits in it. Those behind it
    stay uncertain, as they wait for it and not for anybody's entering them. Sends and receives stay as they are.
    """
    told = by_group(dump.entries)
    doubtful = {call.group for call in state.pending if not call.certain and not call.is_point_to_point}
    settled = {
        group: told[group]
        for group in doubtful
        if group in told and group in state.groups and told[group].enqueued == state.groups[group].entered
    }
    if not doubtful:
        return state
    kept = [call for call in state.pending if _is_open(call, settled)]
    heads = [head for group, each in settled.items() if (head := _head(group, each, kept, find)) is not None]
    known = {(head.group, head.sequence) for head in heads}
    others = [call for call in kept if call.is_point_to_point or (call.group, call.sequence) not in known]
    return replace(
        state,
        pending=tuple(sorted((*heads, *others), key=lambda call: call.entered)),
        groups={name: _progress(progress, settled.get(name)) for name, progress in state.groups.items()},
        unseen=(*state.unseen, *(_doubt(group, state, told) for group in sorted(doubtful - settled.keys()))),
    )


def _is_open(call: Operation, settled: Mapping[str, GroupCompletion]) -> bool:
    group = settled.get(call.group)
    if group is None or call.is_point_to_point or call.certain:
        return True
    return group.first_open is not None and call.sequence >= group.first_open


def _head(group: str, told: GroupCompletion, kept: Iterable[Operation], find: Find) -> Operation | None:
    """The call that the rank waits in, certain now; the box hands out the newest calls alone, and it may be older."""
    if told.first_open is None:
        return None
    here = (call for call in kept if (call.group, call.sequence) == (group, told.first_open))
    call = next((call for call in here if not call.is_point_to_point), None) or find(group, told.first_open)
    return None if call is None else replace(call, certain=True)


def _progress(progress: GroupProgress, told: GroupCompletion | None) -> GroupProgress:
    if told is None:
        return progress
    return GroupProgress(progress.entered, progress.entered if told.first_open is None else told.first_open - 1)


def _doubt(group: str, state: RankState, told: Mapping[str, GroupCompletion]) -> str:
    """Why nothing is known of a group."""
    if group not in told:
        return f"its flight recorder remembers no collective of group {group!r}"
    entered = state.groups[group].entered if group in state.groups else 0
    counts = f"{told[group].enqueued} collectives of group {group!r}, and its box {entered}"
    return f"its flight recorder counts {counts}: which of them are over is not known"
