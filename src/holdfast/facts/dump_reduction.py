"""Reduces flight-recorder dumps one after the other: one is in memory at a time, and little of each stays.

Groups are told apart by name and members, because ids count the groups of one process and ``split_group`` gives one
name to several groups.
"""

from __future__ import annotations

import gc
import re
from array import array
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from holdfast.errors import DumpUnreadable
from holdfast.facts import flight_recorder, reduced_dumps
from holdfast.facts.dump_blocks import GroupBlocks, by_group
from holdfast.facts.dump_identity import believable, rank_of, status_by_name
from holdfast.facts.evidence import Ignored, Kind, Piece
from holdfast.facts.flight_recorder import Dump
from holdfast.facts.ranks import Operation
from holdfast.facts.recorded_entries import MOST_ENTRIES, Entry, Sites, State
from holdfast.facts.reduced_dumps import MOST_OPEN, Call, Reduced, ReducedGroup, ReducedRank, Transfer

#: Completed calls of one rank that are kept in full, for its last known line.
RECENT = 4
#: Calls of a coalesced block that are looked at.
MOST_PARTS = 64
#: Calls whose sizes follow the data: no two are alike, and none has to be.
_ANY_SIZE = re.compile(r"all_?to_?all|_v$|gatherv|scatterv", re.IGNORECASE)
#: What tells apart calls from one line.
_LOOKS = attrgetter("title", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")

_T = TypeVar("_T")


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


class Reducer:
    """Takes dumps, and what others have reduced, and gathers both in ``reduced``."""

    def __init__(self) -> None:
        self.reduced = Reduced()
        #: Files of which nothing stayed.
        self.ignored: list[Ignored] = []
        self._ranks: dict[int, int] = {}
        self._calls: dict[Call, int] = {self.reduced.calls[0]: 0}
        self._members: dict[tuple[int, ...], int] = {}
        self._histories: dict[bytes, int] = {}
        self._seen: dict[tuple[object, ...], int] = {}

    def add(self, piece: Piece) -> None:
        """Read a dump, or a file of reduced ones; what cannot be read is said in ``unseen``."""
        most = reduced_dumps.MOST_BYTES if piece.kind is Kind.REDUCED else flight_recorder.MOST_BYTES
        try:
            with piece.open() as file:
                data = file.read(most + 1)
            if piece.kind is Kind.REDUCED:
                self.merge(reduced_dumps.decode(data, piece.name))
            else:
                with _collector_off():
                    self._add(flight_recorder.parse(data, piece.name), piece.name)
        except DumpUnreadable as error:
            self.ignored.append(Ignored(piece.name, error.why, lost=True))
        except (OSError, EOFError) as error:
            self.ignored.append(Ignored(piece.name, f"it could not be read: {error}", lost=True))

    def merge(self, other: Reduced) -> None:
        """Take over what was reduced elsewhere."""
        calls = array("I", [0])
        for call in other.calls[1:]:
            calls.append(self._call(replace(call, parts=tuple(calls[part] for part in call.parts))))
        members = [_placed(self._members, self.reduced.members, ranks) for ranks in other.members]
        histories = [
            _placed(
                self._histories, self.reduced.histories, array("I", [calls[at] for at in array("I", each)]).tobytes()
            )
            for each in other.histories
        ]
        for rank in other.ranks:
            for group in rank.groups:
                group.members = None if group.members is None else members[group.members]
                group.history = None if group.history is None else histories[group.history]
            self._keep(rank)
        self.reduced.unseen += other.unseen

    def _add(self, dump: Dump, name: str) -> None:
        rank = rank_of(dump)
        if rank is None:
            why = "neither its name nor its contents tell whose dump it is"
            self.ignored.append(Ignored(name, why, lost=True))
            return
        if dump.dropped:
            self.reduced.unseen.append(f"{name}: {dump.dropped} entries are not what torch writes; left out")
        self._keep(self._reduce(rank, name, dump))

    def _keep(self, rank: ReducedRank) -> None:
        """Add a rank; of two dumps of one the newer stays."""
        at = self._ranks.setdefault(rank.rank, len(self.reduced.ranks))
        if at == len(self.reduced.ranks):
            self.reduced.ranks.append(rank)
            return
        known = self.reduced.ranks[at]
        newer = (rank.newest, rank.has_sites) > (known.newest, known.has_sites)
        older = known if newer else rank
        if newer:
            self.reduced.ranks[at] = rank
        self.ignored.append(Ignored(older.file, f"rank {rank.rank} has a newer dump"))

    def _reduce(self, rank: int, file: str, dump: Dump) -> ReducedRank:
        newest = max(map(attrgetter("created_ns"), dump.entries), default=0) / 1e9
        made = ReducedRank(rank, file, newest, any(entry.site for entry in dump.entries[-8:]), [])
        numbers: dict[str, int] = {}
        for group in dump.groups:
            if group.name:
                numbers[group.name] = len(made.groups)
                made.groups.append(ReducedGroup(group.name, self._place_of(group.ranks), group.description))
        whole = bool(dump.entries) and dump.entries[0].number == 0
        sorted_out, sites = by_group(dump.entries), Sites()
        for name, blocks in sorted_out.items():
            if blocks.collectives:
                self._collectives(made, numbers[name], blocks.collectives, sites)
            if blocks.transfers:
                self._transfers(made, numbers[name], sorted_out, whole=whole)
            counted = made.groups[numbers[name]]
            counted.entered = max(counted.entered, blocks.reached)
        _from_status(dump, {group.name: group for group in made.groups}, sorted_out)
        made.pending.sort(key=lambda item: item[1].entered)
        del made.pending[MOST_OPEN:]
        made.recent = sorted(made.recent, key=lambda item: item[1].entered)[-RECENT:]
        return made

    def _place_of(self, members: tuple[int, ...] | None) -> int | None:
        return _placed(self._members, self.reduced.members, members) if believable(members) else None

    def _collectives(self, made: ReducedRank, at: int, calls: Mapping[int, list[Entry]], sites: Sites) -> None:
        """History, progress and open calls of one group; in a block, the last entry has the state."""
        group = made.groups[at]
        numbers = sorted(calls)
        first, last = numbers[0], numbers[-1]
        done = next((number for number in reversed(numbers) if calls[number][-1].finished), 0)
        if last - first < MOST_ENTRIES:
            places = array("I", bytes(reduced_dumps.WIDTH * (last - first + 1)))
            for number, block in calls.items():
                places[number - first] = self._place(block, sites)
            group.first, group.history = first, _placed(self._histories, self.reduced.histories, places.tobytes())
        group.entered, group.completed, group.backend = last, done, calls[last][-1].backend
        open_calls = numbers[bisect(numbers, done) :]
        made.pending += [
            (at, _operation(calls[number], number, certain=number == open_calls[0])) for number in open_calls
        ]
        if done:
            # On gloo a call that timed out is retired too: only a state is certain.
            certain = calls[done][-1].state is State.COMPLETED
            made.recent.append((at, _operation(calls[done], done, certain=certain)))

    def _transfers(self, made: ReducedRank, at: int, all_blocks: Mapping[str, GroupBlocks], *, whole: bool) -> None:
        members = self._members_of(made.groups[at])
        blocks = all_blocks[made.groups[at].name]
        sorted_out: dict[tuple[str, int], list[Entry]] = defaultdict(list)
        for entry in blocks.transfers:
            if entry.peer is not None and entry.peer < len(members):
                sorted_out[entry.name, members[entry.peer]].append(entry)
        last = max(entry.point_to_point_sequence for entry in blocks.transfers)
        for (name, peer), mine in sorted_out.items():
            still = [entry for entry in mine if not blocks.finished[entry.number]][:MOST_OPEN]
            open_calls = tuple(
                _operation([entry], entry.point_to_point_sequence, certain=True, peer=peer) for entry in still
            )
            anchor = self._anchor(made, peer, all_blocks)
            marks = all_blocks[anchor].collectives if anchor else {}
            made.transfers.append((at, Transfer(
                "", name, peer, len(mine), max(last, 0), whole, open_calls, anchor, min(marks, default=0),
                _after(mine, marks),
            )))  # fmt: skip

    def _anchor(self, made: ReducedRank, peer: int, blocks: Mapping[str, GroupBlocks]) -> str:
        """The largest group with collectives to which the peer belongs: both sides choose the same."""
        shared = (
            (-len(members), group.name)
            for group in made.groups
            if group.name in blocks and blocks[group.name].collectives and peer in (members := self._members_of(group))
        )
        return min(shared, default=(0, ""))[1]

    def _members_of(self, group: ReducedGroup) -> tuple[int, ...]:
        return () if group.members is None else self.reduced.members[group.members]

    def _place(self, block: list[Entry], sites: Sites) -> int:
        """The place in the table of the call that these entries are."""
        entry = block[-1]
        site = sites.of(entry.frames)
        parts = tuple(self._place([part], sites) for part in block[:-1][:MOST_PARTS]) if len(block) > 1 else ()
        same = (_LOOKS(entry), site, parts)
        place = self._seen.get(same)
        if place is None:
            call = Call(entry.name, entry.backend, site=site, parts=parts)
            if not _ANY_SIZE.search(entry.name):
                call = replace(
                    call, input_sizes=entry.input_sizes, output_sizes=entry.output_sizes,
                    input_dtypes=entry.input_dtypes, output_dtypes=entry.output_dtypes,
                )  # fmt: skip
            place = self._seen[same] = self._call(call)
        return place

    def _call(self, call: Call) -> int:
        return _placed(self._calls, self.reduced.calls, call)


def _placed(known: dict[_T, int], table: list[_T], value: _T) -> int:
    """The place of the value in the table, where it is put if it is new."""
    place = known.setdefault(value, len(table))
    if place == len(table):
        table.append(value)
    return place


def _after(transfers: list[Entry], collectives: Mapping[int, list[Entry]]) -> tuple[int, ...]:
    """For each transfer the number of the last collective before it; one less than the first, where there is none."""
    recorded = sorted((block[-1].number, number) for number, block in collectives.items())
    places = [number for number, _ in recorded]
    numbers = [min(collectives, default=1) - 1, *(number for _, number in recorded)]
    return tuple(numbers[bisect(places, entry.number)] for entry in transfers)


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


def _from_status(dump: Dump, groups: Mapping[str, ReducedGroup], sorted_out: Mapping[str, GroupBlocks]) -> None:
    """How far groups are of which entries are gone: dumps of open calls alone, and rings that were written over.

    Where a group has sends and receives, the status counts both: then the entries alone are believed.
    """
    for name, status in status_by_name(dump).items():
        group, blocks = groups[name], sorted_out.get(name)
        if blocks is None:
            group.entered, group.completed = max(status.enqueued, 0), max(status.completed, 0)
        elif not blocks.mixed and status.completed <= group.entered:
            group.completed = max(group.completed, status.completed)
