"""Many ranks' dumps of the flight recorder, put together: one table of ranks, made with one dump in memory at a time.

Of each dump stay: how far its groups came, the calls that are still open, and which call stood at which number, as
four bytes each into a table of distinct calls that all ranks share. Groups are joined by name and members, because ids
count the groups of one process and ``split_group`` gives one name to several groups.
"""

from __future__ import annotations

import gc
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

import msgspec

from holdfast.errors import DumpUnreadable
from holdfast.facts import flight_recorder
from holdfast.facts.dump_blocks import GroupBlocks, by_group
from holdfast.facts.dump_identity import believable, rank_of, status_by_name
from holdfast.facts.evidence import Piece
from holdfast.facts.flight_recorder import Dump, Entry, Sites, State
from holdfast.facts.ranks import Group, GroupProgress, Operation, Place, RankState
from holdfast.report.ranksets import compress_ranks

#: Open calls of one rank that are kept, the oldest first: a stuck device with a host that ran ahead has some dozens.
MOST_OPEN = 256
#: Completed calls of one rank that are kept in full, for its last known line.
RECENT = 4
#: Calls whose sizes follow the data: no two are alike, and none has to be.
_ANY_SIZE = re.compile(r"all_?to_?all|_v$|gatherv|scatterv", re.IGNORECASE)

Key = tuple[str, tuple[int, ...] | None]


class Call(msgspec.Struct, frozen=True, gc=False):
    """What one call was: equal calls of all ranks are one object. ``parts`` are the calls of a coalesced block."""

    name: str
    backend: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    site: Place | None = None
    parts: tuple[int, ...] = ()


class History(msgspec.Struct, frozen=True, gc=False):
    """The collectives of one rank in one group: that of number ``first`` and on, as places in the table of calls.

    Place 0 stands where the ring has lost the call.
    """

    first: int
    calls: array[int]


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """Sends or receives of one rank with one peer in one group: how many the ring holds, and those still open.

    ``whole`` is True where the ring holds all that there were. ``last`` is the number of the last of the group.
    """

    group: str
    name: str
    peer: int
    count: int
    last: int
    whole: bool
    open: tuple[Operation, ...]


class DumpTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the dumps tell. ``histories`` and ``transfers`` are by group and rank; ``states`` are versions and files."""

    ranks: tuple[RankState, ...] = ()
    groups: dict[str, Group] = {}
    world_size: int = 0
    unseen: tuple[str, ...] = ()
    calls: tuple[Call, ...] = (Call(""),)
    histories: dict[str, dict[int, History]] = {}
    transfers: dict[int, tuple[Transfer, ...]] = {}
    files: dict[int, str] = {}


class _Counted(msgspec.Struct, gc=False):
    """One group as one dump has it."""

    description: str = ""
    backend: str = ""
    entered: int = 0
    completed: int = 0
    history: History | None = None


class _Rank(msgspec.Struct, gc=False):
    """What stays of one dump."""

    rank: int
    file: str
    newest: float
    has_sites: bool
    groups: dict[Key, _Counted]
    pending: list[tuple[Key, Operation]]
    recent: list[tuple[Key, Operation]]
    transfers: list[tuple[Key, Transfer]]


def read(pieces: Iterable[Piece], known: Mapping[str, Group] | None = None) -> DumpTable:
    """The table of all ranks whose dump can be read; what cannot, and what is missing, is said in ``unseen``.

    ``known``: groups by name that somebody else wrote down (the boxes), for dumps of gloo, which lack the members.
    """
    reducer = _Reducer(known or {})
    for piece in pieces:
        reducer.add(piece)
    return reducer.table()


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keeps the garbage collector from following a dump's ten thousands of dicts, which hold no cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Reducer:
    """Takes one dump after the other and keeps little of each."""

    def __init__(self, known: Mapping[str, Group]) -> None:
        self._known = known
        self._calls: dict[Call, int] = {Call(""): 0}
        self._listed: list[Call] = [Call("")]
        self._seen: dict[tuple[object, ...], int] = {}
        self._ranks: dict[int, _Rank] = {}
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._unseen: list[str] = []

    def add(self, piece: Piece) -> None:
        """Read a dump and keep what the judgement needs."""
        with _collector_off():
            self._add(piece)

    def _add(self, piece: Piece) -> None:
        try:
            with piece.open() as file:
                dump = flight_recorder.parse(file.read(flight_recorder.MOST_BYTES + 1), piece.name)
        except DumpUnreadable as error:
            self._unseen.append(str(error))
            return
        except (OSError, EOFError) as error:
            self._unseen.append(f"{piece.name} could not be read: {error}")
            return
        rank = rank_of(dump)
        if rank is None:
            self._unseen.append(f"{piece.name}: neither its name nor its contents tell whose dump it is; left out")
            return
        if dump.dropped:
            self._unseen.append(f"{piece.name}: {dump.dropped} entries are not what torch writes; left out")
        made = self._reduced(rank, piece.name, dump)
        known = self._ranks.get(rank)
        if known is not None:
            self._unseen.append(f"rank {rank} has two dumps: the newer of {known.file} and {piece.name} is used")
        if known is None or (made.newest, made.has_sites) > (known.newest, known.has_sites):
            self._ranks[rank] = made

    def _reduced(self, rank: int, file: str, dump: Dump) -> _Rank:
        keys: dict[str, Key] = {}
        groups: dict[Key, _Counted] = {}
        for group in dump.groups:
            if group.name:
                members = self._members.setdefault(group.ranks, group.ranks) if believable(group.ranks) else None
                key = keys[group.name] = (group.name, members)
                groups[key] = _Counted(group.description)
        newest = max((entry.created_ns for entry in dump.entries), default=0) / 1e9
        made = _Rank(rank, file, newest, any(entry.site for entry in dump.entries[-8:]), groups, [], [], [])
        whole = bool(dump.entries) and dump.entries[0].number == 0
        sorted_out, sites = by_group(dump.entries), Sites()
        for name, blocks in sorted_out.items():
            key = keys[name]
            if blocks.collectives:
                self._fill(made, key, blocks.collectives, sites)
            if blocks.transfers:
                _transfers(made, key, blocks, whole=whole)
            groups[key].entered = max(groups[key].entered, blocks.reached)
        _from_status(dump, keys, groups, sorted_out)
        made.pending.sort(key=lambda item: item[1].entered)
        del made.pending[MOST_OPEN:]
        made.recent = sorted(made.recent, key=lambda item: item[1].entered)[-RECENT:]
        return made

    def _fill(self, made: _Rank, key: Key, calls: Mapping[int, list[Entry]], sites: Sites) -> None:
        """History, progress and open calls of one group; in a block, the last entry has the state."""
        counted = made.groups[key]
        first, last = min(calls), max(calls)
        done = next((number for number in sorted(calls, reverse=True) if calls[number][-1].finished), 0)
        if last - first < flight_recorder.MOST_ENTRIES:
            places = array("I", bytes(4 * (last - first + 1)))
            for number, block in calls.items():
                places[number - first] = self._place(block, sites)
            counted.history = History(first, places)
        counted.entered, counted.completed = last, done
        counted.backend = calls[last][-1].backend
        open_calls = sorted(number for number in calls if number > done)
        for number in open_calls:
            operation = _operation(calls[number], number, certain=number == open_calls[0])
            made.pending.append((key, operation))
        if done:
            block = calls[done]
            # On gloo a call that timed out is retired too: only a state is certain.
            certain = block[-1].state is State.COMPLETED
            made.recent.append((key, _operation(block, done, certain=certain)))

    def _place(self, block: list[Entry], sites: Sites) -> int:
        """The place in the table of the call that these entries are."""
        parts = tuple(self._place([part], sites) for part in block[:-1][:64]) if len(block) > 1 else ()
        entry = block[-1]
        same = (entry.title, entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes,
                sites.of(entry.frames), parts)  # fmt: skip
        place = self._seen.get(same)
        if place is None:
            call = _call(entry, parts)
            place = self._seen[same] = self._calls.setdefault(call, len(self._listed))
            if place == len(self._listed):
                self._listed.append(call)
        return place

    def _members_of(self, name: str, counted: _Counted, size: int) -> tuple[int, ...] | None:
        """The members of a group of which the dumps do not say them, as on gloo."""
        if name in self._known:
            return self._known[name].ranks
        return tuple(range(size)) if counted.description == "default_pg" else None

    def table(self) -> DumpTable:
        """The table; the newest dump of each rank stands in it."""
        names = _names(self._ranks.values())
        size = _world_size(self._ranks.values())
        groups = {
            names[key]: Group(
                names[key], key[1] or self._members_of(key[0], counted, size), counted.description, counted.backend
            )
            for made in self._ranks.values() for key, counted in made.groups.items()
        }  # fmt: skip
        histories: dict[str, dict[int, History]] = defaultdict(dict)
        for rank, made in sorted(self._ranks.items()):
            for key, counted in made.groups.items():
                if counted.history is not None:
                    histories[names[key]][rank] = counted.history
        return DumpTable(
            ranks=tuple(_state(made, names) for _, made in sorted(self._ranks.items())),
            groups=groups, world_size=size, unseen=(*self._unseen, *_missing(self._ranks, groups, size)),
            calls=tuple(self._listed), histories=dict(histories),
            transfers={
                rank: tuple(_of_group(each, names[key]) for key, each in made.transfers)
                for rank, made in self._ranks.items()
            },
            files={rank: made.file for rank, made in self._ranks.items()},
        )  # fmt: skip


def _call(entry: Entry, parts: tuple[int, ...]) -> Call:
    if _ANY_SIZE.search(entry.name):
        return Call(entry.name, entry.backend, site=entry.site, parts=parts)
    return Call(
        entry.name, entry.backend, entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes,
        entry.site, parts,
    )  # fmt: skip


def _transfers(made: _Rank, key: Key, blocks: GroupBlocks, *, whole: bool) -> None:
    members = key[1]
    sorted_out: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in blocks.transfers:
        if entry.peer is not None and members is not None and entry.peer < len(members):
            sorted_out[entry.name, members[entry.peer]].append(entry)
    last = max(entry.point_to_point_sequence for entry in blocks.transfers)
    for (name, peer), mine in sorted_out.items():
        still = [entry for entry in mine if not blocks.finished[entry.number]][:MOST_OPEN]
        open_calls = tuple(
            _operation([entry], entry.point_to_point_sequence, certain=True, peer=peer) for entry in still
        )
        made.transfers.append((key, Transfer("", name, peer, len(mine), last, whole, open_calls)))


def _operation(block: list[Entry], number: int, *, certain: bool, peer: int | None = None) -> Operation:
    entry = block[-1]
    shown = block[0]  # the call that closes a block has no sizes of its own
    shape = shown.input_sizes[0] if shown.input_sizes else ()
    return Operation(
        group="", sequence=number, name=entry.name, dtype=shown.input_dtypes[0] if shown.input_dtypes else "",
        elements=prod(shape) if shown.input_sizes else 0, shape=shape, peer=peer, site=entry.site or shown.site,
        entered=entry.created, completed=entry.completed or entry.created if entry.finished else None,
        tensors=len(shown.input_sizes), certain=certain,
    )  # fmt: skip


# ---- whose dump, which group


def _from_status(
    dump: Dump, keys: Mapping[str, Key], groups: Mapping[Key, _Counted], sorted_out: Mapping[str, GroupBlocks]
) -> None:
    """How far groups are of which entries are gone: dumps of open calls alone, and rings that were written over.

    Where a group has sends and receives, the status counts both: then the entries alone are believed.
    """
    for name, status in status_by_name(dump).items():
        counted = groups[keys[name]]
        blocks = sorted_out.get(name)
        if blocks is None:
            counted.entered, counted.completed = max(status.enqueued, 0), max(status.completed, 0)
        elif not blocks.mixed and status.completed <= counted.entered:
            counted.completed = max(counted.completed, status.completed)


def _names(ranks: Iterable[_Rank]) -> dict[Key, str]:
    """One name for each group: its own, with its members where another group has the same."""
    members: dict[str, set[tuple[int, ...] | None]] = defaultdict(set)
    for made in ranks:
        for name, ranks_of in made.groups:
            members[name].add(ranks_of)
    found = {}
    for name, sets in members.items():
        known = {each for each in sets if each is not None}
        for each in sets:
            twice = len(known) > 1 and each is not None
            found[name, each] = f"{name} of ranks {compress_ranks(each or ())}" if twice else name
    return found


def _world_size(ranks: Iterable[_Rank]) -> int:
    highest = -1
    for made in ranks:
        highest = max(highest, made.rank, *(max(key[1]) for key in made.groups if key[1]))
    return highest + 1


def _state(made: _Rank, names: Mapping[Key, str]) -> RankState:
    groups = {
        names[key]: GroupProgress(counted.entered, counted.completed)
        for key, counted in made.groups.items()
        if counted.entered
    }
    pending = tuple(msgspec.structs.replace(call, group=names[key]) for key, call in made.pending)
    recent = tuple(msgspec.structs.replace(call, group=names[key]) for key, call in made.recent)
    return RankState(rank=made.rank, progress=made.newest, groups=groups, pending=pending, recent=recent)


def _of_group(transfer: Transfer, name: str) -> Transfer:
    calls = tuple(msgspec.structs.replace(call, group=name) for call in transfer.open)
    return msgspec.structs.replace(transfer, group=name, open=calls)


def _missing(ranks: Mapping[int, _Rank], groups: Mapping[str, Group], size: int) -> Iterable[str]:
    absent = [rank for rank in range(size) if rank not in ranks]
    if absent:
        yield f"rank{'s' if len(absent) > 1 else ''} {compress_ranks(absent)}: no dump"
    unknown = sorted(group.name for group in groups.values() if group.ranks is None)
    if unknown:
        listed = ", ".join(repr(name) for name in unknown[:8])
        yield f"the dumps do not say who belongs to the groups {listed} (gloo leaves that out)"
