"""Many ranks' dumps of the flight recorder, put together: one table of ranks that the rules judge.

``dump_reduction.py`` takes the dumps one by one and keeps little of each, ``reduced_dumps.py`` says what.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.facts.dump_reduction import Reducer
from holdfast.facts.evidence import Piece
from holdfast.facts.ranks import Group, GroupProgress, RankState
from holdfast.facts.reduced_dumps import Call, Reduced, ReducedGroup, ReducedRank, Transfer
from holdfast.report.ranksets import compress_ranks

#: Backends of torch and of vendors that record their calls as NCCL's or gloo's do; "" where the dump does not say.
BACKENDS = frozenset({"", "nccl", "ncclx", "gloo", "xccl", "rccl", "hccl", "mccl", "ucc", "mpi", "fake"})

#: Name of a group, and the place of its members in the table of those.
Key = tuple[str, int | None]


class History(msgspec.Struct, frozen=True, gc=False):
    """The collectives of one rank in one group: that of number ``first`` and on, as places in the table of calls.

    Place 0 stands where the ring has lost the call. Ranks that made the same calls share ``calls``.
    """

    first: int
    calls: array[int]


class DumpTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the dumps tell. ``histories`` and ``transfers`` are by group and rank, ``files`` by rank."""

    ranks: tuple[RankState, ...] = ()
    groups: dict[str, Group] = {}
    world_size: int = 0
    unseen: tuple[str, ...] = ()
    calls: tuple[Call, ...] = (Call(""),)
    histories: dict[str, dict[int, History]] = {}
    transfers: dict[int, tuple[Transfer, ...]] = {}
    files: dict[int, str] = {}


def read(pieces: Iterable[Piece], known: Mapping[str, Group] | None = None) -> DumpTable:
    """The table of all ranks whose dump can be read; what cannot, and what is missing, is said in ``unseen``.

    ``known``: groups by name that somebody else wrote down (the boxes), for dumps of gloo, which lack the members.
    """
    reducer = reduce(pieces)
    made = table(reducer.reduced, known)
    return replace(made, unseen=(*(f"{item.name}: {item.why}" for item in reducer.ignored), *made.unseen))


def reduce(pieces: Iterable[Piece]) -> Reducer:
    """What of these dumps, and of files of reduced ones, a table needs; and the files of which nothing stayed."""
    reducer = Reducer()
    for piece in pieces:
        reducer.add(piece)
    return reducer


def table(reduced: Reduced, known: Mapping[str, Group] | None = None) -> DumpTable:
    """The table that reduced dumps make; ``known`` as in :func:`read`."""
    ranks = {rank.rank: rank for rank in sorted(reduced.ranks, key=lambda rank: rank.rank)}
    names = _names(reduced)
    size = _world_size(reduced)
    groups: dict[str, Group] = {}
    histories: dict[str, dict[int, History]] = defaultdict(dict)
    calls = [array("I", each) for each in reduced.histories]
    for made in ranks.values():
        for group in made.groups:
            name = names[group.name, group.members]
            members = _members(reduced, group, known or {}, size)
            groups[name] = Group(name, members, group.description, group.backend)
            if group.history is not None:
                histories[name][made.rank] = History(group.first, calls[group.history])
    return DumpTable(
        ranks=tuple(_state(made, names) for made in ranks.values()), groups=groups, world_size=size,
        unseen=(*reduced.unseen, *_missing(ranks, groups, size)), calls=tuple(reduced.calls),
        histories=dict(histories), transfers={rank: _transfers(made, names) for rank, made in ranks.items()},
        files={rank: made.file for rank, made in ranks.items()},
    )  # fmt: skip


def _names(reduced: Reduced) -> dict[Key, str]:
    """One name for each group: its own, with its members where another group has the same."""
    places: dict[str, set[int | None]] = defaultdict(set)
    for made in reduced.ranks:
        for group in made.groups:
            places[group.name].add(group.members)
    found: dict[Key, str] = {}
    for name, each in places.items():
        twice = len(each - {None}) > 1
        for place in each:
            if place is None or not twice:
                found[name, place] = name
            else:
                found[name, place] = f"{name} of ranks {compress_ranks(reduced.members[place])}"
    return found


def _world_size(reduced: Reduced) -> int:
    named = {group.members for made in reduced.ranks for group in made.groups if group.members is not None}
    highest = (max(reduced.members[place]) for place in named)
    return 1 + max((*highest, *(made.rank for made in reduced.ranks)), default=-1)


def _members(reduced: Reduced, group: ReducedGroup, known: Mapping[str, Group], size: int) -> tuple[int, ...] | None:
    """The members of a group, also where the dumps do not say them, as on gloo."""
    if group.members is not None:
        return reduced.members[group.members]
    if group.name in known:
        return known[group.name].ranks
    return tuple(range(size)) if group.description == "default_pg" else None


def _name(made: ReducedRank, at: int, names: Mapping[Key, str]) -> str:
    return names[made.groups[at].name, made.groups[at].members]


def _state(made: ReducedRank, names: Mapping[Key, str]) -> RankState:
    groups = {
        names[group.name, group.members]: GroupProgress(group.entered, group.completed)
        for group in made.groups
        if group.entered
    }
    pending = tuple(replace(call, group=_name(made, at, names)) for at, call in made.pending)
    recent = tuple(replace(call, group=_name(made, at, names)) for at, call in made.recent)
    return RankState(rank=made.rank, progress=made.newest, groups=groups, pending=pending, recent=recent)


def _transfers(made: ReducedRank, names: Mapping[Key, str]) -> tuple[Transfer, ...]:
    unique = {group.name: names[group.name, group.members] for group in made.groups}
    found = []
    for at, transfer in made.transfers:
        name = _name(made, at, names)
        calls = tuple(replace(call, group=name) for call in transfer.open)
        found.append(replace(transfer, group=name, open=calls, anchor=unique.get(transfer.anchor, "")))
    return tuple(found)


def _missing(ranks: Mapping[int, ReducedRank], groups: Mapping[str, Group], size: int) -> Iterable[str]:
    absent = [rank for rank in range(size) if rank not in ranks]
    if absent:
        yield f"rank{'s' if len(absent) > 1 else ''} {compress_ranks(absent)}: no dump"
    unknown = sorted(group.name for group in groups.values() if group.ranks is None)
    if unknown:
        listed = ", ".join(repr(name) for name in unknown[:8])
        yield f"the dumps do not say who belongs to the groups {listed} (gloo leaves that out)"
    strange = sorted({group.backend for group in groups.values()} - BACKENDS)
    for backend in strange[:4]:
        yield f"backend {backend[:64]!r} is not known here: whether its calls are over may be told otherwise"
