"""Completion of NCCL calls according to a flight-recorder dump: which completed, which waits.

A trace file shows which calls a rank's host entered; on NCCL only the flight recorder shows how far
the device got. The two are joined by group name and sequence number, and only if both counted
equally many calls: a block of coalesced calls is one call to NCCL and several in the trace file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_table import GroupProgress, RankState, RecordedCall
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump
from holdfast.watcher.flight_recorder.entries import DumpEntry

#: Finds a collective of the rank by group and number; None if the trace file has lost it.
FindCall = Callable[[str, int], RecordedCall | None]


class GroupCompletion(msgspec.Struct, frozen=True, gc=False):
    """Number of enqueued collectives of a group, and the first incomplete one, if any."""

    enqueued: int
    first_open: int | None


def completion_by_group(entries: Iterable[DumpEntry]) -> dict[str, GroupCompletion]:
    """Return the completion of each group in the entries."""
    finished: dict[str, dict[int, bool]] = {}
    for entry in entries:
        if not entry.is_point_to_point and entry.collective_sequence > 0:
            # The entries of a coalesced block share a number; the last of them has the state.
            finished.setdefault(entry.group, {})[entry.collective_sequence] = entry.finished
    return {
        group: GroupCompletion(
            max(numbers), min((at for at, done in numbers.items() if not done), default=None)
        )
        for group, numbers in finished.items()
    }


def last_completion(dump: FlightRecorderDump, now: float) -> float:
    """Return the Unix time at which torch's watchdog last saw a call complete; 0.0 if unknown.

    For calls that the watchdog has not retired, the dump contains its own time, which is no
    progress.
    """
    times = (
        entry.completed for entry in dump.entries if entry.retired and entry.completed is not None
    )
    return max((time for time in times if time <= now), default=0.0)


def mark_completed(state: RankState, dump: FlightRecorderDump, find_call: FindCall) -> RankState:
    """Apply the dump to the collectives of groups for which both counted equally many calls.

    Completed calls are no longer pending. The first incomplete one becomes certain: the rank waits
    in it. Those after it stay uncertain, because they wait for it and not for other ranks. Sends
    and receives do not change.
    """
    completions = completion_by_group(dump.entries)
    doubtful = {call.group for call in state.pending if call.is_doubtful}
    if not doubtful:
        return state
    known = {
        group: completions[group]
        for group in doubtful
        if group in completions
        and group in state.groups
        and completions[group].enqueued == state.groups[group].entered
    }
    open_calls = [call for call in state.pending if _is_open(call, known)]
    heads = [
        head
        for group, completion in known.items()
        if (head := _head(group, completion, open_calls, find_call)) is not None
    ]
    head_keys = {(head.group, head.sequence) for head in heads}
    others = [
        call
        for call in open_calls
        if call.is_point_to_point or (call.group, call.sequence) not in head_keys
    ]
    reasons = (_reason(group, state, completions) for group in sorted(doubtful - known.keys()))
    return replace(
        state,
        pending=tuple(sorted((*heads, *others), key=lambda call: call.entered)),
        groups={
            name: _progress(progress, known.get(name)) for name, progress in state.groups.items()
        },
        unseen=(*state.unseen, *reasons),
    )


def _is_open(call: RecordedCall, known: Mapping[str, GroupCompletion]) -> bool:
    completion = known.get(call.group)
    if completion is None or not call.is_doubtful:
        return True
    return completion.first_open is not None and call.sequence >= completion.first_open


def _head(
    group: str,
    completion: GroupCompletion,
    open_calls: Iterable[RecordedCall],
    find_call: FindCall,
) -> RecordedCall | None:
    """Return the call that the rank waits in; it may be older than the calls in ``open_calls``."""
    number = completion.first_open
    if number is None:
        return None
    matching = (call for call in open_calls if (call.group, call.sequence) == (group, number))
    call = next((call for call in matching if not call.is_point_to_point), None)
    call = call or find_call(group, number)
    return None if call is None else replace(call, certain=True)


def _progress(progress: GroupProgress, completion: GroupCompletion | None) -> GroupProgress:
    if completion is None:
        return progress
    first_open = completion.first_open
    return GroupProgress(
        progress.entered, progress.entered if first_open is None else first_open - 1
    )


def _reason(group: str, state: RankState, completions: Mapping[str, GroupCompletion]) -> str:
    """Return why the completion of a group is unknown."""
    if group not in completions:
        return f"its flight recorder has no collective of group {group!r}"
    entered = state.groups[group].entered if group in state.groups else 0
    return (
        f"completion in group {group!r} is unknown: its flight recorder counts "
        f"{completions[group].enqueued} collectives, its trace file {entered}"
    )
