"""Whose dump it is, and which of its groups a status is of: what a dump says of itself only in passing."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TypeGuard

from holdfast.facts.flight_recorder import Dump, Status
from holdfast.facts.recorded_entries import title_of

#: Ranks of a job; whoever names more is not believed.
MOST_RANKS = 1 << 17


def rank_of(dump: Dump) -> int | None:
    """The rank that the name says, unless the dump's groups rule it out; else the one member of all its groups."""
    everywhere: set[int] | None = None
    members = {group.name: group.ranks for group in dump.groups if believable(group.ranks)}
    for ranks in members.values():
        everywhere = set(ranks) if everywhere is None else everywhere & set(ranks)
    for title, (group, _) in set(map(attrgetter("title", "process_group"), dump.entries)):
        own, ranks_here = title_of(title).own, members.get(group)
        if own is not None and ranks_here is not None and own < len(ranks_here):
            return ranks_here[own]
    if dump.rank is not None and dump.rank < MOST_RANKS and (everywhere is None or dump.rank in everywhere):
        return dump.rank
    return next(iter(everywhere)) if everywhere is not None and len(everywhere) == 1 else None


def believable(ranks: tuple[int, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """True for the members of a group that a job can have."""
    return ranks is not None and 0 < len(ranks) <= MOST_RANKS and 0 <= min(ranks) <= max(ranks) < MOST_RANKS


def status_by_name(dump: Dump) -> dict[str, Status]:
    """The status of each named group.

    torch keeps it under an id that counts the groups of the process. Names count those of the job, so that both are in
    the same order: where there are as many of either, and no entry contradicts, they belong together.
    """
    found = {group.name: group.status for group in dump.groups if group.name and group.status is not None}
    numbered = sorted((int(group.name), group) for group in dump.groups if re.fullmatch(r"\d{1,9}", group.name))
    if len(numbered) != sum(bool(group.name) for group in dump.groups):
        return found
    states = {group.id: group.status for group in dump.groups if group.id is not None and group.status is not None}
    pairs = list(zip(sorted(states), (group for _, group in numbered), strict=False))
    if len(states) == len(numbered) and all(group.id in (None, number) for number, group in pairs):
        return {group.name: states[number] for number, group in pairs}
    return found
