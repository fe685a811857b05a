"""Reduce flight-recorder dumps one after the other, so that only one is in memory at a time.

Process groups are identified by name and members, because ids count the groups of one process and
``split_group`` gives several groups one name.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping
from math import prod
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.errors import DumpUnreadable
from holdfast.core.gc_pause import gc_paused
from holdfast.core.rank_table import RecordedCall
from holdfast.diagnose.dumps import reduced_dumps
from holdfast.diagnose.dumps.dump_blocks import GroupBlocks, group_entries
from holdfast.diagnose.dumps.dump_identity import is_valid_members, rank_of_dump, status_by_name
from holdfast.diagnose.dumps.reduced_dumps import (
    MAX_OPEN_CALLS,
    CallSignature,
    PeerTransfers,
    ReducedDumps,
    ReducedGroup,
    ReducedRank,
)
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump
from holdfast.watcher.flight_recorder.entries import MAX_ENTRIES, CallSites, DumpEntry, EntryState

#: Completed calls per rank that are kept in full, for its last known line.
MAX_RECENT_CALLS = 4
#: Calls of a coalesced block that are kept.
MAX_PARTS = 64
#: Calls whose sizes depend on the data and may differ between ranks.
_VARIABLE_SIZE = re.compile(r"all_?to_?all|_v$|gatherv|scatterv", re.IGNORECASE)
#: Distinguishes calls of one source line.
_SIGNATURE = attrgetter("title", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")

_T = TypeVar("_T")


class DumpReducer:
    """Reduces dumps, and merges files of reduced dumps, into ``reduced``."""

    def __init__(self) -> None:
        self.reduced = ReducedDumps()
        #: Files that contributed nothing.
        self.skipped: list[SkippedEvidence] = []
        self._ranks: dict[int, int] = {}
        self._calls: dict[CallSignature, int] = {self.reduced.calls[0]: 0}
        self._members: dict[tuple[int, ...], int] = {}
        self._histories: dict[bytes, int] = {}
        self._by_entry: dict[tuple[object, ...], int] = {}

    def add(self, source: EvidenceFile) -> None:
        """Read a dump or a file of reduced dumps; an unreadable file is added to ``skipped``."""
        is_reduced = source.kind is EvidenceKind.REDUCED
        limit = reduced_dumps.MAX_BYTES if is_reduced else dump_reader.MAX_BYTES
        try:
            with source.open() as file:
                data = file.read(limit + 1)
            if is_reduced:
                self.merge(reduced_dumps.decode(data, source.name))
            else:
                with gc_paused():
                    self._add(dump_reader.parse_dump(data, source.name), source.name)
        except DumpUnreadable as error:
            self.skipped.append(SkippedEvidence(source.name, error.why, lost=True))
        except (OSError, EOFError) as error:
            self.skipped.append(SkippedEvidence(source.name, f"unreadable: {error}", lost=True))

    def merge(self, other: ReducedDumps) -> None:
        """Merge dumps that were reduced elsewhere."""
        calls = array("I", [0])
        for call in other.calls[1:]:
            calls.append(
                self._call_index(replace(call, parts=tuple(calls[part] for part in call.parts)))
            )
        members = [_intern(self._members, self.reduced.members, ranks) for ranks in other.members]
        histories = [
            self._history_index(array("I", [calls[index] for index in array("I", history)]))
            for history in other.histories
        ]
        for rank in other.ranks:
            for group in rank.groups:
                group.members = None if group.members is None else members[group.members]
                group.history = None if group.history is None else histories[group.history]
            self._keep(rank)
        self.reduced.unseen += other.unseen

    def _add(self, dump: FlightRecorderDump, name: str) -> None:
        rank = rank_of_dump(dump)
        if rank is None:
            why = "its rank is unknown: neither in the file name nor in the dump"
            self.skipped.append(SkippedEvidence(name, why, lost=True))
            return
        if dump.dropped:
            self.reduced.unseen.append(f"{name}: {dump.dropped} invalid entries skipped")
        self._keep(self._reduce(rank, name, dump))

    def _keep(self, rank: ReducedRank) -> None:
        """Add a rank; of two dumps of one rank, keep the newer."""
        index = self._ranks.setdefault(rank.rank, len(self.reduced.ranks))
        if index == len(self.reduced.ranks):
            self.reduced.ranks.append(rank)
            return
        known = self.reduced.ranks[index]
        newer = (rank.newest, rank.has_sites) > (known.newest, known.has_sites)
        older = known if newer else rank
        if newer:
            self.reduced.ranks[index] = rank
        self.skipped.append(SkippedEvidence(older.file, f"rank {rank.rank} has a newer dump"))

    def _reduce(self, rank: int, file: str, dump: FlightRecorderDump) -> ReducedRank:
        newest = max(map(attrgetter("created_ns"), dump.entries), default=0) / 1e9
        row = ReducedRank(rank, file, newest, any(entry.site for entry in dump.entries[-8:]), [])
        indices: dict[str, int] = {}
        for group in dump.groups:
            if group.name:
                indices[group.name] = len(row.groups)
                row.groups.append(
                    ReducedGroup(group.name, self._members_index(group.ranks), group.description)
                )
        whole = bool(dump.entries) and dump.entries[0].number == 0
        all_blocks, sites = group_entries(dump.entries), CallSites()
        for name, blocks in all_blocks.items():
            if blocks.collectives:
                self._add_collectives(row, indices[name], blocks.collectives, sites)
            if blocks.transfers:
                self._add_transfers(row, indices[name], all_blocks, whole=whole)
            reduced = row.groups[indices[name]]
            reduced.entered = max(reduced.entered, blocks.reached)
        _apply_status(dump, {group.name: group for group in row.groups}, all_blocks)
        row.pending.sort(key=lambda item: item[1].entered)
        del row.pending[MAX_OPEN_CALLS:]
        row.recent = sorted(row.recent, key=lambda item: item[1].entered)[-MAX_RECENT_CALLS:]
        return row

    def _add_collectives(
        self,
        row: ReducedRank,
        group_index: int,
        calls: Mapping[int, list[DumpEntry]],
        sites: CallSites,
    ) -> None:
        """Add history, progress and open calls; the last entry of a block has its state."""
        group = row.groups[group_index]
        numbers = sorted(calls)
        first, last = numbers[0], numbers[-1]
        done = next((number for number in reversed(numbers) if calls[number][-1].finished), 0)
        if last - first < MAX_ENTRIES:
            history = array("I", bytes(reduced_dumps.CALL_BYTES * (last - first + 1)))
            for number, block in calls.items():
                history[number - first] = self._block_index(block, sites)
            group.first, group.history = first, self._history_index(history)
        group.entered, group.completed, group.backend = last, done, calls[last][-1].backend
        open_calls = numbers[bisect(numbers, done) :]
        row.pending += [
            (group_index, _recorded_call(calls[number], number, certain=number == open_calls[0]))
            for number in open_calls
        ]
        if done:
            # gloo also retires a call that timed out: only a recorded state is certain.
            certain = calls[done][-1].state is EntryState.COMPLETED
            row.recent.append((group_index, _recorded_call(calls[done], done, certain=certain)))

    def _add_transfers(
        self,
        row: ReducedRank,
        group_index: int,
        all_blocks: Mapping[str, GroupBlocks],
        *,
        whole: bool,
    ) -> None:
        members = self._members_of(row.groups[group_index])
        blocks = all_blocks[row.groups[group_index].name]
        by_peer: dict[tuple[str, int], list[DumpEntry]] = defaultdict(list)
        for entry in blocks.transfers:
            if entry.peer is not None and entry.peer < len(members):
                by_peer[entry.name, members[entry.peer]].append(entry)
        last = max(entry.point_to_point_sequence for entry in blocks.transfers)
        for (name, peer), entries in by_peer.items():
            unfinished = [entry for entry in entries if not blocks.finished[entry.number]]
            open_calls = tuple(
                _recorded_call([entry], entry.point_to_point_sequence, certain=True, peer=peer)
                for entry in unfinished[:MAX_OPEN_CALLS]
            )
            anchor = self._anchor_group(row, peer, all_blocks)
            marks = all_blocks[anchor].collectives if anchor else {}
            transfers = PeerTransfers(
                group="",
                name=name,
                peer=peer,
                count=len(entries),
                last=max(last, 0),
                whole=whole,
                open=open_calls,
                anchor=anchor,
                since=min(marks, default=0),
                after=_preceding_collectives(entries, marks),
            )
            row.transfers.append((group_index, transfers))

    def _anchor_group(self, row: ReducedRank, peer: int, blocks: Mapping[str, GroupBlocks]) -> str:
        """Return the largest group with collectives and the peer; both ranks choose the same."""
        shared = (
            (-len(members), group.name)
            for group in row.groups
            if group.name in blocks
            and blocks[group.name].collectives
            and peer in (members := self._members_of(group))
        )
        return min(shared, default=(0, ""))[1]

    def _members_of(self, group: ReducedGroup) -> tuple[int, ...]:
        return () if group.members is None else self.reduced.members[group.members]

    def _members_index(self, members: tuple[int, ...] | None) -> int | None:
        if not is_valid_members(members):
            return None
        return _intern(self._members, self.reduced.members, members)

    def _history_index(self, history: array[int]) -> int:
        return _intern(self._histories, self.reduced.histories, history.tobytes())

    def _call_index(self, call: CallSignature) -> int:
        return _intern(self._calls, self.reduced.calls, call)

    def _block_index(self, block: list[DumpEntry], sites: CallSites) -> int:
        """Return the index of the call that these entries form."""
        entry = block[-1]
        site = sites.of(entry.frames)
        parts = (
            tuple(self._block_index([part], sites) for part in block[:-1][:MAX_PARTS])
            if len(block) > 1
            else ()
        )
        key = (_SIGNATURE(entry), site, parts)
        index = self._by_entry.get(key)
        if index is None:
            call = CallSignature(entry.name, entry.backend, site=site, parts=parts)
            if not _VARIABLE_SIZE.search(entry.name):
                call = replace(
                    call,
                    input_sizes=entry.input_sizes,
                    output_sizes=entry.output_sizes,
                    input_dtypes=entry.input_dtypes,
                    output_dtypes=entry.output_dtypes,
                )
            index = self._by_entry[key] = self._call_index(call)
        return index


def _intern(known: dict[_T, int], table: list[_T], value: _T) -> int:
    """Return the index of the value in the table, appending it if it is new."""
    index = known.setdefault(value, len(table))
    if index == len(table):
        table.append(value)
    return index


def _preceding_collectives(
    transfers: list[DumpEntry], collectives: Mapping[int, list[DumpEntry]]
) -> tuple[int, ...]:
    """Return for each transfer the number of the last collective before it.

    Transfers before the first collective get its number minus 1.
    """
    recorded = sorted((block[-1].number, number) for number, block in collectives.items())
    positions = [position for position, _ in recorded]
    numbers = [min(collectives, default=1) - 1, *(number for _, number in recorded)]
    return tuple(numbers[bisect(positions, entry.number)] for entry in transfers)


def _recorded_call(
    block: list[DumpEntry], number: int, *, certain: bool, peer: int | None = None
) -> RecordedCall:
    entry = block[-1]
    first = block[0]  # the call that closes a block has no sizes
    shape = first.input_sizes[0] if first.input_sizes else ()
    return RecordedCall(
        group="",
        sequence=number,
        name=entry.name,
        dtype=first.input_dtypes[0] if first.input_dtypes else "",
        elements=prod(shape) if first.input_sizes else 0,
        shape=shape,
        peer=peer,
        site=entry.site or first.site,
        entered=entry.created,
        completed=entry.completed or entry.created if entry.finished else None,
        tensors=len(first.input_sizes),
        certain=certain,
    )


def _apply_status(
    dump: FlightRecorderDump,
    groups: Mapping[str, ReducedGroup],
    all_blocks: Mapping[str, GroupBlocks],
) -> None:
    """Add the progress of groups whose entries are lost: overwritten, or a dump of open calls only.

    In a group with point-to-point calls the status counts these too, so only entries are used.
    """
    for name, status in status_by_name(dump).items():
        group, blocks = groups[name], all_blocks.get(name)
        if blocks is None:
            group.entered, group.completed = max(status.enqueued, 0), max(status.completed, 0)
        elif not blocks.mixed and status.completed <= group.entered:
            group.completed = max(group.completed, status.completed)
