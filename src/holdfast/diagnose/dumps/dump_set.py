"""Combine the flight-recorder dumps of many ranks into one table, which the rules judge."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_sets import compress_ranks, describe_ranks
from holdfast.core.rank_table import GroupProgress, ProcessGroupInfo, RankState
from holdfast.diagnose.dumps.dump_reduction import DumpReducer
from holdfast.diagnose.dumps.reduced_dumps import (
    CallSignature,
    PeerTransfers,
    ReducedDumps,
    ReducedGroup,
    ReducedRank,
)
from holdfast.diagnose.evidence import EvidenceFile

#: Backends that record calls as NCCL and gloo do; "" if the dump does not name one.
BACKENDS = frozenset(
    {"", "nccl", "ncclx", "gloo", "xccl", "rccl", "hccl", "mccl", "ucc", "mpi", "fake"}
)

#: Name of a group, and the index of its members in their table.
_GroupKey = tuple[str, int | None]


class CallHistory(msgspec.Struct, frozen=True, gc=False):
    """The collectives of one rank in one group from number ``first`` on, as indices of calls.

    Index 0: the ring buffer has lost the call. Ranks that made the same calls share ``calls``.
    """

    first: int
    calls: array[int]


class DumpTable(msgspec.Struct, frozen=True, kw_only=True):
    """The content of all dumps.

    ``histories`` are by group and rank, ``transfers`` and ``files`` by rank.
    """

    ranks: tuple[RankState, ...] = ()
    groups: dict[str, ProcessGroupInfo] = {}
    world_size: int = 0
    unseen: tuple[str, ...] = ()
    calls: tuple[CallSignature, ...] = (CallSignature(""),)
    histories: dict[str, dict[int, CallHistory]] = {}
    transfers: dict[int, tuple[PeerTransfers, ...]] = {}
    files: dict[int, str] = {}


def read_dumps(
    files: Iterable[EvidenceFile], known: Mapping[str, ProcessGroupInfo] | None = None
) -> DumpTable:
    """Return the table of all readable dumps; unreadable and missing ones are in ``unseen``.

    ``known`` are groups by name from other evidence (trace files): gloo's dumps have no members.
    """
    reducer = reduce_files(files)
    table = build_table(reducer.reduced, known)
    skipped = (f"{item.name}: {item.why}" for item in reducer.skipped)
    return replace(table, unseen=(*skipped, *table.unseen))


def reduce_files(files: Iterable[EvidenceFile]) -> DumpReducer:
    """Reduce these dumps and files of reduced dumps."""
    reducer = DumpReducer()
    for file in files:
        reducer.add(file)
    return reducer


def build_table(
    reduced: ReducedDumps, known: Mapping[str, ProcessGroupInfo] | None = None
) -> DumpTable:
    """Return the table of reduced dumps; ``known`` as in :func:`read_dumps`."""
    rows = {row.rank: row for row in sorted(reduced.ranks, key=lambda row: row.rank)}
    names = _unique_names(reduced)
    world_size = _world_size(reduced)
    groups: dict[str, ProcessGroupInfo] = {}
    histories: dict[str, dict[int, CallHistory]] = defaultdict(dict)
    calls = [array("I", history) for history in reduced.histories]
    for row in rows.values():
        for group in row.groups:
            name = names[group.name, group.members]
            members = _members(reduced, group, known or {}, world_size)
            groups[name] = ProcessGroupInfo(name, members, group.description, group.backend)
            if group.history is not None:
                histories[name][row.rank] = CallHistory(group.first, calls[group.history])
    return DumpTable(
        ranks=tuple(_rank_state(row, names) for row in rows.values()),
        groups=groups,
        world_size=world_size,
        unseen=(*reduced.unseen, *_describe_unseen(rows, groups, world_size)),
        calls=tuple(reduced.calls),
        histories=dict(histories),
        transfers={rank: _transfers(row, names) for rank, row in rows.items()},
        files={rank: row.file for rank, row in rows.items()},
    )


def _unique_names(reduced: ReducedDumps) -> dict[_GroupKey, str]:
    """Return one name per group: its own, with its members if several groups share the name."""
    members: dict[str, set[int | None]] = defaultdict(set)
    for row in reduced.ranks:
        for group in row.groups:
            members[group.name].add(group.members)
    names: dict[_GroupKey, str] = {}
    for name, indices in members.items():
        ambiguous = len(indices - {None}) > 1
        for index in indices:
            suffix = ""
            if index is not None and ambiguous:
                suffix = f" of ranks {compress_ranks(reduced.members[index])}"
            names[name, index] = name + suffix
    return names


def _world_size(reduced: ReducedDumps) -> int:
    indices = {group.members for row in reduced.ranks for group in row.groups}
    highest = (max(reduced.members[index]) for index in indices if index is not None)
    return 1 + max((*highest, *(row.rank for row in reduced.ranks)), default=-1)


def _members(
    reduced: ReducedDumps,
    group: ReducedGroup,
    known: Mapping[str, ProcessGroupInfo],
    world_size: int,
) -> tuple[int, ...] | None:
    """Return the members of a group, also where the dump does not contain them, as on gloo."""
    if group.members is not None:
        return reduced.members[group.members]
    if group.name in known:
        return known[group.name].ranks
    return tuple(range(world_size)) if group.description == "default_pg" else None


def _rank_state(row: ReducedRank, names: Mapping[_GroupKey, str]) -> RankState:
    unique = [names[group.name, group.members] for group in row.groups]
    return RankState(
        rank=row.rank,
        progress=row.newest,
        groups={
            name: GroupProgress(group.entered, group.completed)
            for name, group in zip(unique, row.groups, strict=True)
            if group.entered
        },
        pending=tuple(replace(call, group=unique[index]) for index, call in row.pending),
        recent=tuple(replace(call, group=unique[index]) for index, call in row.recent),
    )


def _transfers(row: ReducedRank, names: Mapping[_GroupKey, str]) -> tuple[PeerTransfers, ...]:
    unique = [names[group.name, group.members] for group in row.groups]
    by_name = {group.name: name for group, name in zip(row.groups, unique, strict=True)}
    return tuple(
        replace(
            transfers,
            group=unique[index],
            open=tuple(replace(call, group=unique[index]) for call in transfers.open),
            anchor=by_name.get(transfers.anchor, ""),
        )
        for index, transfers in row.transfers
    )


def _describe_unseen(
    rows: Mapping[int, ReducedRank], groups: Mapping[str, ProcessGroupInfo], world_size: int
) -> Iterable[str]:
    absent = [rank for rank in range(world_size) if rank not in rows]
    if absent:
        yield f"{describe_ranks(absent)}: no dump"
    unknown = sorted(group.name for group in groups.values() if group.ranks is None)
    if unknown:
        listed = ", ".join(repr(name) for name in unknown[:8])
        yield f"the dumps do not contain the members of the groups {listed} (gloo omits them)"
    for backend in sorted({group.backend for group in groups.values()} - BACKENDS)[:4]:
        yield f"unknown backend {backend[:64]!r}: its call states may have another meaning"
