"""Reads trace files: of a living rank (cheaply, twice a second) or of a dead one, from any host.

A trace file is untrusted input: every offset is checked against the size of the file, every record
against its checksum, and every line of notes separately. What does not match is dropped and
counted.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core import trace_file
from holdfast.core.errors import TraceCorrupt, TraceTruncated, TraceUnreadable, TraceVersion
from holdfast.core.rank_table import (
    GroupProgress,
    ProcessGroupInfo,
    RecordedCall,
)
from holdfast.core.trace_file import HEADER, RECORD_BYTES, STEP_SLOT
from holdfast.watcher.trace_notes import TraceNotes, parse_note

RECORD_DTYPE = np.dtype(
    [
        ("number", "<u8"),
        ("entered", "<u8"),
        ("completed", "<u8"),
        ("sequence", "<u8"),
        ("elements", "<u8"),
        ("group", "<u4"),
        ("site", "<u4"),
        ("operation", "<u2"),
        ("dtype", "<u2"),
        ("peer", "<i4"),
        ("tag", "<i4"),
        ("flags", "<u4"),
        ("tensors", "<u4"),
        ("caller", "<u4"),
        ("shape", "<u4", (8,)),
        ("reduction", "<u2"),
        ("ndim", "<u2"),
        ("outcome", "<u4"),
        ("thread", "<u8"),
        ("check", "<u8"),
    ]
)
_BYTES = np.dtype((np.void, RECORD_DTYPE.itemsize))
#: Words of a group: entered, completed, entered_ns, completed_ns, peer_entered, peer_completed,
#: and two spare ones.
_GROUP_WORDS = trace_file.GROUP_BYTES // 8
_SEQUENCES, _TIMES = slice(0, 2), slice(2, 4)
MAX_RECORDS = 1 << 22
MAX_NOTES_BYTES = 64 << 20
_MAX_NUMBER = 1 << 62
#: Older calls than the newest of this number have been written, unless their thread has ended.
_MAX_UNWRITTEN = 256
#: Newest calls of unknown completion that may be pending.
MAX_UNCERTAIN = 32
#: Calls from which the step time is inferred.
STEP_CALLS = 1024


@dataclass(frozen=True)
class TraceHeader:
    """The writer of the trace file.

    ``offset_ns`` plus the time of a record is Unix time in nanoseconds; ``started`` is in Unix
    seconds.
    """

    host: str
    rank: int
    world_size: int
    local_rank: int
    generation: int
    pid: int
    start_ticks: int
    started: float
    offset_ns: int


@dataclass(frozen=True)
class StepSlot:
    """The step slot: current step, number of steps done, phase and its time limit.

    ``since`` and ``phase_since`` are Unix seconds.
    """

    number: int
    since: float
    counted: int
    phase: str
    budget_s: float
    phase_since: float


class TraceReading:
    """One trace file, memory-mapped.

    Raises (on opening):
        TraceTruncated, TraceVersion, TraceCorrupt: the file is truncated, of another version, or
            not a trace file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file cannot be mapped
            raise TraceTruncated(path, why="it is empty") from error
        except OSError as error:
            raise TraceUnreadable(path, why=error.strerror or str(error)) from error
        self.header, areas = self._read_header()
        groups_at, groups, notes_at, notes_size, ring_at, records = areas
        self._notes_at, self._notes_size, self._notes_read = notes_at, notes_size, 0
        self.notes = TraceNotes()
        self._members: dict[str, ProcessGroupInfo] | None = None
        words = np.frombuffer(self._map, "<u8", groups * _GROUP_WORDS, groups_at)
        self._groups = words.reshape(groups, _GROUP_WORDS)
        self._ring = np.frombuffer(self._map, RECORD_DTYPE, records, ring_at)
        #: Places in the ring: all calls up to that number that had not completed when last read.
        self._read, self._open = -1, np.empty(0, np.int64)

    def _read_header(self) -> tuple[TraceHeader, tuple[int, ...]]:
        size = len(self._map)
        if size < trace_file.HEADER_BYTES:
            raise TraceTruncated(self.path, why=f"it has {size} bytes, less than a header")
        magic, version, _, *numbers, host = HEADER.unpack_from(self._map, 0)
        if magic != trace_file.MAGIC:
            raise TraceCorrupt(self.path)
        if version != trace_file.VERSION:
            raise TraceVersion(
                self.path,
                why=f"its layout is version {version}, this holdfast reads {trace_file.VERSION}",
            )
        identity, areas = numbers[:8], numbers[8:]
        groups_at, groups, notes_at, notes_size, ring_at, records = areas
        if (
            not 0 < records <= MAX_RECORDS
            or not 0 < groups <= MAX_RECORDS
            or notes_size > MAX_NOTES_BYTES
        ):
            raise TraceCorrupt(self.path, why="the sizes in its header are impossible")
        end = max(
            groups_at + groups * trace_file.GROUP_BYTES,
            notes_at + notes_size,
            ring_at + records * RECORD_BYTES,
        )
        if end > size:
            raise TraceTruncated(
                self.path, why=f"it has {size} bytes where its header requires {end}"
            )
        name = host.split(b"\0")[0].decode(errors="replace")
        return TraceHeader(name, *identity), tuple(areas)

    def unix(self, nanoseconds: int) -> float:
        """Convert a recorded time to Unix seconds."""
        return (int(nanoseconds) + self.header.offset_ns) / 1e9

    @property
    def begun(self) -> int:
        """The number of calls begun since the rank started."""
        (head,) = trace_file.HEADS.unpack_from(self._map, trace_file.RECORDS_HEAD)
        return int(head)

    def step(self) -> StepSlot:
        """Return the step slot; retry a few times while it is being written."""
        for _ in range(8):
            lock, number, since, counted, budget, phase_since, phase = STEP_SLOT.unpack_from(
                self._map, trace_file.STEP
            )
            if lock % 2 == 0:
                break
        name = phase.split(b"\0")[0].decode(errors="replace")
        return StepSlot(number, self.unix(since), counted, name, budget, self.unix(phase_since))

    def host_seconds(self) -> tuple[float, float]:
        """Return the seconds spent in the data loader and in garbage collection so far."""
        loader, collector = trace_file.HOST_TIMES_SLOT.unpack_from(self._map, trace_file.HOST_TIMES)
        return loader / 1e9, collector / 1e9

    def table(self, since: float | None = None) -> np.ndarray[Any, Any]:
        """Return the intact records, oldest first, with the columns of RECORD_DTYPE.

        With ``since`` (Unix seconds), without calls that completed before.
        """
        selected = self._ring["number"] > 0
        if since is not None:
            completed = self._ring["completed"]
            selected &= (completed >= self._nanoseconds(since)) | (completed == 0)
        return self._records(selected)

    def newest(self, count: int) -> np.ndarray[Any, Any]:
        """Return those of the newest ``count`` records that are intact, oldest first."""
        end = min(self.begun, _MAX_NUMBER)
        kept = min(count, len(self._ring), end)
        return self._records(np.arange(end - kept, end) % len(self._ring))

    def complete_since(self) -> float:
        """Return the Unix time since which the ring holds all calls."""
        if self.begun <= len(self._ring):
            return self.header.started
        return max(self.header.started, self.unix(self._ring["entered"].min()))

    def _nanoseconds(self, unix_s: float) -> int:
        return max(int(unix_s * 1e9) - self.header.offset_ns, 1)

    def _records(self, selected: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rows = select(self._ring, selected)
        return _by_number(select(rows, _is_intact(rows)))

    def pending(self) -> list[RecordedCall]:
        """Return the calls entered and not completed, oldest first.

        They include the newest calls of backends that do not report completion (``certain`` is
        False), which may be in flight. After the first time, only newer calls and those that were
        pending are read.
        """
        places = self._places_to_read()
        if not len(places):
            return []
        rows = select(self._ring, places)
        newest = self._read - (self._read - 1 - places) % len(self._ring)
        number = rows["number"].astype(np.int64)
        intact = _is_intact(rows)
        # A newer call is reserved, or is being written, at these places.
        unwritten = (number < newest) | ~intact
        unwritten &= newest > max(self._read - _MAX_UNWRITTEN, 0)
        pending = (rows["completed"] == 0) & (rows["number"] > 0) & intact
        uncertain = np.flatnonzero(pending & (rows["flags"] & trace_file.FLAG_NO_COMPLETION != 0))
        pending[uncertain[np.argsort(number[uncertain])][:-MAX_UNCERTAIN]] = False
        self._open = places[unwritten | pending]
        self.read_notes()
        return [self.operation(row) for row in _by_number(select(rows, pending))]

    def _places_to_read(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the places in the ring of calls that may be pending, and note them as read."""
        read, self._read = self._read, min(self.begun, _MAX_NUMBER)
        capacity = len(self._ring)
        if not 0 <= read <= self._read < read + capacity:
            return np.arange(capacity)
        if read == self._read:
            return self._open
        return np.union1d(self._open, np.arange(read, self._read) % capacity)

    def completed_since(self, since: float) -> np.ndarray[Any, Any]:
        """Return the intact records of calls that completed after ``since`` (Unix seconds)."""
        self.read_notes()
        return self._records(self._ring["completed"] >= self._nanoseconds(since))

    def collective(self, group: str, sequence: int) -> RecordedCall | None:
        """Return the collective of that number in a group; None if the ring has lost it."""
        rows = self._records((self._ring["sequence"] == sequence) & (self._ring["number"] > 0))
        self.read_notes()
        calls = [self.operation(row) for row in rows]
        return next(
            (call for call in calls if call.group == group and not call.is_point_to_point), None
        )

    def recent(self, count: int) -> list[RecordedCall]:
        """Return the newest ``count`` calls, oldest first."""
        self.read_notes()
        return [self.operation(row) for row in self.table()[-count:]]

    def progress(self) -> dict[str, GroupProgress]:
        """Return the last sequence number entered and the last completed, by group."""
        self.read_notes()
        used = self._groups[: len(self.notes.names), _SEQUENCES].tolist()
        return {
            self.notes.names[index]: GroupProgress(*sequences)
            for index, sequences in enumerate(used)
            if index in self.notes.names
        }

    def groups(self) -> dict[str, ProcessGroupInfo]:
        """Return every group that the rank created or used: the same table until notes change."""
        notes = self.read_notes()
        if self._members is None:
            self._members = notes.groups()
        return self._members

    def last_change(self) -> float:
        """Return the Unix time of the last begin or end of a call, else of the process start."""
        newest = int(self._groups[:, _TIMES].max())
        return self.unix(newest) if newest else self.header.started

    def operation(self, row: np.void) -> RecordedCall:
        """Convert a row of the table."""
        name = self.notes.names.get(int(row["group"]), f"#{int(row['group'])}")
        group = self.notes.members.get(name)
        peer = int(row["peer"])
        if peer >= 0 and group is not None and group.ranks is not None and peer < len(group.ranks):
            peer = group.ranks[peer]
        completed = int(row["completed"])
        return RecordedCall(
            group=name,
            sequence=int(row["sequence"]),
            name=_name_of(trace_file.OPERATIONS, row["operation"]),
            dtype=_name_of(trace_file.DTYPES, row["dtype"]) if row["tensors"] else "",
            elements=int(row["elements"]),
            shape=tuple(int(size) for size in row["shape"][: min(int(row["ndim"]), 8)]),
            peer=peer if peer >= 0 else None,
            tag=int(row["tag"]),
            site=self.notes.sites.get(int(row["site"])),
            entered=self.unix(row["entered"]),
            completed=self.unix(completed) if completed else None,
            failed=bool(row["outcome"] & trace_file.FAILED),
            reduce=_name_of(trace_file.REDUCTIONS, row["reduction"]),
            tensors=int(row["tensors"]),
            caller=self.notes.sites.get(int(row["caller"])),
            certain=not row["flags"] & trace_file.FLAG_NO_COMPLETION,
        )

    def read_notes(self) -> TraceNotes:
        """Parse the lines appended since the last call; a line being written is read next time."""
        (head,) = trace_file.HEADS.unpack_from(self._map, trace_file.NOTES_HEAD)
        end = min(int(head), self._notes_size)
        if end == self._notes_read:
            return self.notes
        self._members = None
        data = self._map[self._notes_at + self._notes_read : self._notes_at + end]
        whole = data.rfind(b"\n") + 1
        torn = data.find(b"\0")
        if 0 <= torn < whole and len(data) < 1 << 16:
            whole = data.rfind(b"\n", 0, torn) + 1  # reserved, not yet written
        for line in data[:whole].splitlines():
            try:
                parse_note(self.notes, line.strip(b"\0").decode(errors="replace").split("\t"))
            except (ValueError, IndexError, KeyError, TypeError, AttributeError):
                self.notes.dropped += 1
        self._notes_read += whole
        return self.notes


def _name_of(names: tuple[str, ...], number: Any) -> str:
    return names[int(number)] if int(number) < len(names) else f"#{int(number)}"


def select(
    rows: np.ndarray[Any, Any], selected: np.ndarray[Any, np.dtype[Any]]
) -> np.ndarray[Any, Any]:
    """Return ``rows[selected]``, a mask or indices: of records, that takes 60 times as long."""
    if selected.dtype == np.bool_:
        selected = np.flatnonzero(selected)
    found: np.ndarray[Any, Any] = rows.view(_BYTES)[selected].view(RECORD_DTYPE)
    return found


def _by_number(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sort records; ``np.sort`` with ``order`` takes several times as long."""
    return select(rows, np.argsort(rows["number"]))


def _is_intact(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Compare the checksums, as trace_file.record_checksum does, on columns of 64-bit integers."""
    u64 = np.uint64
    place = rows["group"].astype(u64) << u64(32) | rows["site"].astype(u64)
    kind = rows["operation"].astype(u64) | rows["dtype"].astype(u64) << u64(16)
    kind |= rows["peer"].astype(np.uint32).astype(u64) << u64(32)
    mixed = (
        rows["number"]
        ^ rows["entered"] * u64(3)
        ^ rows["sequence"] * u64(5)
        ^ rows["elements"] * u64(7)
    )
    mixed = mixed ^ place * u64(11) ^ kind * u64(13)
    intact: np.ndarray[Any, np.dtype[np.bool_]] = ~mixed == rows["check"]
    return intact


def step_seconds(table: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the durations of steps in seconds, inferred from a repeating pattern of calls.

    The length of the pattern is the shortest shift under which at least 95% of the last 1,024 calls
    match in operation, group, size and call site. Empty without a pattern.
    """
    rows = table[-STEP_CALLS:]
    count = len(rows)
    kinds = rows["operation"].astype(np.uint64) * np.uint64(1_000_003) ^ rows["group"].astype(
        np.uint64
    ) << np.uint64(20)
    kinds = (
        kinds ^ rows["elements"] * np.uint64(31) ^ rows["site"].astype(np.uint64) << np.uint64(40)
    )
    for shift in range(1, count // 3 + 1):
        if np.mean(kinds[shift:] == kinds[:-shift]) >= 0.95:
            begins = rows["entered"][count % shift :: shift].astype(np.float64)
            return np.diff(begins) / 1e9
    return np.empty(0)
