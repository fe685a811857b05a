"""Determine which rank wrote a dump, and which of its process groups a status belongs to."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TypeGuard

from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump, GroupStatus
from holdfast.watcher.flight_recorder.entries import title_of

#: Maximum ranks of a job; larger numbers are invalid.
MAX_RANKS = 1 << 17


def rank_of_dump(dump: FlightRecorderDump) -> int | None:
    """Return the rank that wrote the dump, None if it cannot be determined.

    Sources, in this order: the own rank in the title of a point-to-point call; the rank in the file
    name, unless the groups exclude it; the only rank that is a member of all groups.
    """
    in_all: set[int] | None = None
    members = {group.name: group.ranks for group in dump.groups if is_valid_members(group.ranks)}
    for ranks in members.values():
        in_all = set(ranks) if in_all is None else in_all & set(ranks)
    for title, (group, _) in set(map(attrgetter("title", "process_group"), dump.entries)):
        own, group_ranks = title_of(title).own, members.get(group)
        if own is not None and group_ranks is not None and own < len(group_ranks):
            return group_ranks[own]
    named = dump.rank
    if named is not None and named < MAX_RANKS and (in_all is None or named in in_all):
        return named
    return next(iter(in_all)) if in_all is not None and len(in_all) == 1 else None


def is_valid_members(ranks: tuple[int, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """Return whether these are possible members of a process group."""
    return (
        ranks is not None
        and 0 < len(ranks) <= MAX_RANKS
        and 0 <= min(ranks) <= max(ranks) < MAX_RANKS
    )


def status_by_name(dump: FlightRecorderDump) -> dict[str, GroupStatus]:
    """Return the status of each named process group.

    torch stores a status under an id that counts the groups of the process; names count the groups
    of the job. Both are therefore in the same order: if their numbers are equal and no entry
    contradicts, they are matched in this order.
    """
    by_name = {
        group.name: group.status for group in dump.groups if group.name and group.status is not None
    }
    numbered = sorted(
        (int(group.name), group) for group in dump.groups if re.fullmatch(r"\d{1,9}", group.name)
    )
    if len(numbered) != sum(bool(group.name) for group in dump.groups):
        return by_name
    by_id = {
        group.id: group.status
        for group in dump.groups
        if group.id is not None and group.status is not None
    }
    pairs = list(zip(sorted(by_id), (group for _, group in numbered), strict=False))
    if len(by_id) == len(numbered) and all(group.id in (None, number) for number, group in pairs):
        return {group.name: by_id[number] for number, group in pairs}
    return by_name
