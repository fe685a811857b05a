"""Reads boxes: of a living rank (cheaply, twice a second) or of a dead one, from any host, whole or damaged.

A box is hostile input: every offset is checked against the file's size, every record against its check word, every line
of notes by itself. What does not fit is dropped and counted, never believed.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from holdfast import blackbox
from holdfast.blackbox import HEADER, RECORD_BYTES, STEP_SLOT, Note
from holdfast.errors import BoxNoise, BoxTruncated, BoxUnreadable, BoxVersion
from holdfast.facts.ranks import Ended, Group, GroupProgress, Operation, Place, Raised, Trouble

RECORD_DTYPE = np.dtype(
    [
        ("number", "<u8"), ("entered", "<u8"), ("completed", "<u8"), ("sequence", "<u8"), ("elements", "<u8"),
        ("group", "<u4"), ("site", "<u4"), ("operation", "<u2"), ("dtype", "<u2"), ("peer", "<i4"), ("tag", "<i4"),
        ("flags", "<u4"), ("tensors", "<u4"), ("caller", "<u4"), ("shape", "<u4", (8,)), ("reduction", "<u2"),
        ("ndim", "<u2"), ("outcome", "<u4"), ("thread", "<u8"), ("check", "<u8"),
    ]
)  # fmt: skip
GROUP_DTYPE = np.dtype(
    [(name, "<u8") for name in ("entered", "completed", "entered_ns", "completed_ns", "peer_entered", "peer_completed")]
    + [("spare", "<u8", (2,))]
)
MOST_RECORDS = 1 << 22
MOST_NOTES = 64 << 20
#: Calls without known completion that are taken for possibly pending.
MOST_UNCERTAIN = 32


@dataclass(frozen=True)
class Header:
    """Who wrote the box. ``offset_ns`` added to a record's time gives Unix time in nanoseconds."""

    rank: int
    world_size: int
    local_rank: int
    generation: int
    pid: int
    start_ticks: int
    started: float
    offset_ns: int
    host: str


@dataclass(frozen=True)
class Step:
    """The step slot: the step and when it began, how many were counted, the phase with its budget and begin.

    Times are Unix seconds.
    """

    number: int
    since: float
    counted: int
    phase: str
    budget_s: float
    phase_since: float


@dataclass
class Notes:
    """The lines of notes, sorted out. ``names`` maps a group's index to its name; a warning is (about what, text)."""

    sites: dict[int, Place] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    members: dict[str, Group] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    raised: Raised | None = None
    ended: Ended | None = None
    words: list[str] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    saved: int | None = None
    loaded: int | None = None
    preempted: int | None = None
    troubles: list[Trouble] = field(default_factory=list)
    dropped: int = 0

    def groups(self) -> dict[str, Group]:
        """Every group that the rank made or met, by name; members are None where only the name is known."""
        met = {name: Group(name, None, "", self.backends.get(name, "")) for name in self.names.values()}
        return met | {
            name: msgspec.structs.replace(group, backend=self.backends.get(name, ""))
            for name, group in self.members.items()
        }


class Box:
    """One box, mapped and read where it lies.

    Raises (on opening):
        BoxTruncated, BoxVersion, BoxNoise: the file is cut short, of another version, or no box at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file cannot be mapped
            raise BoxTruncated(path, why="it is empty") from error
        except OSError as error:
            raise BoxUnreadable(path, why=error.strerror or str(error)) from error
        self.header, areas = self._read_header()
        groups_at, groups, notes_at, notes_size, ring_at, records = areas
        self._notes_at, self._notes_size, self._notes_read = notes_at, notes_size, 0
        self.notes = Notes()
        self._groups = np.frombuffer(self._map, GROUP_DTYPE, groups, groups_at)
        self._ring = np.frombuffer(self._map, RECORD_DTYPE, records, ring_at)

    def _read_header(self) -> tuple[Header, tuple[int, ...]]:
        size = len(self._map)
        if size < blackbox.HEADER_BYTES:
            raise BoxTruncated(self.path, why=f"it has {size} bytes, less than a header")
        (magic, version, _, rank, world, local, generation, pid, ticks, started, offset, *areas, host) = (
            HEADER.unpack_from(self._map, 0)
        )
        if magic != blackbox.MAGIC:
            raise BoxNoise(self.path)
        if version != blackbox.VERSION:
            raise BoxVersion(self.path, why=f"its layout is version {version}, this holdfast reads {blackbox.VERSION}")
        groups_at, groups, notes_at, notes_size, ring_at, records = areas
        ends = (groups_at + groups * blackbox.GROUP_BYTES, notes_at + notes_size, ring_at + records * RECORD_BYTES)
        if not 0 < records <= MOST_RECORDS or not 0 < groups <= MOST_RECORDS or notes_size > MOST_NOTES:
            raise BoxNoise(self.path, why="what it says of its own size cannot be")
        if max(ends) > size:
            raise BoxTruncated(self.path, why=f"it has {size} bytes where its header promises {max(ends)}")
        name = host.split(b"\0")[0].decode(errors="replace")
        return Header(rank, world, local, generation, pid, ticks, started, offset, name), tuple(areas)

    def unix(self, nanoseconds: int) -> float:
        """A recorded time as Unix seconds."""
        return (int(nanoseconds) + self.header.offset_ns) / 1e9

    @property
    def begun(self) -> int:
        """How many calls were begun over the whole life of the rank."""
        (head,) = blackbox.HEADS.unpack_from(self._map, blackbox.RECORDS_HEAD)
        return int(head)

    @property
    def records(self) -> int:
        """How many calls the ring holds; where more were begun, the oldest are lost."""
        return len(self._ring)

    def step(self) -> Step:
        """The step slot; a slot that was being written is read again, a few times, then taken as it is."""
        for _ in range(8):
            lock, number, since, counted, budget, _, phase_since, phase = self._slot()
            if lock % 2 == 0:
                break
        name = phase.split(b"\0")[0].decode(errors="replace")
        return Step(number, self.unix(since), counted, name, budget, self.unix(phase_since))

    def _slot(self) -> tuple[Any, ...]:
        lock, number, since, counted, budget, phase_since, phase = STEP_SLOT.unpack_from(self._map, blackbox.STEP)
        return lock, number, since, counted, budget, 0, phase_since, phase

    def table(self) -> np.ndarray[Any, Any]:
        """All whole records, oldest first, as a numpy table with the columns of RECORD_DTYPE; without torn ones."""
        rows = self._ring.copy()
        rows = rows[rows["number"] > 0]
        return np.sort(rows[_whole(rows)], order="number")

    def pending(self) -> list[Operation]:
        """Calls entered and not completed, oldest first.

        With them the newest calls of backends that do not tell (``certain`` is False), which may be in flight.
        """
        rows = self._ring[(self._ring["completed"] == 0) & (self._ring["number"] > 0)].copy()
        rows = np.sort(rows[_whole(rows)], order="number")
        untold = (rows["flags"] & blackbox.FLAG_NO_COMPLETION) != 0
        kept = np.concatenate([rows[~untold], rows[untold][-MOST_UNCERTAIN:]])
        self.read_notes()
        return [self.operation(row) for row in np.sort(kept, order="number")]

    def collective(self, group: str, sequence: int) -> Operation | None:
        """The collective of that number in a group; None where the ring has lost it."""
        rows = self._ring[(self._ring["sequence"] == sequence) & (self._ring["number"] > 0)].copy()
        self.read_notes()
        found = [self.operation(row) for row in np.sort(rows[_whole(rows)], order="number")]
        here = (call for call in found if call.group == group and not call.is_point_to_point)
        return next(here, None)

    def recent(self, count: int) -> list[Operation]:
        """The newest ``count`` calls, oldest first."""
        self.read_notes()
        return [self.operation(row) for row in self.table()[-count:]]

    def progress(self) -> dict[str, GroupProgress]:
        """For each group met: the last sequence entered and the last completed."""
        self.read_notes()
        used = self._groups[: len(self.notes.names)].copy()
        return {
            self.notes.names[index]: GroupProgress(int(row["entered"]), int(row["completed"]))
            for index, row in enumerate(used)
            if index in self.notes.names
        }

    def last_change(self) -> float:
        """Unix time at which a call last began or completed; the start of the process before the first."""
        times = self._groups[["entered_ns", "completed_ns"]]
        newest = max(int(times["entered_ns"].max()), int(times["completed_ns"].max()))
        return self.unix(newest) if newest else self.header.started

    def operation(self, row: np.void) -> Operation:
        """One row of the table in the words of facts/ranks.py."""
        name = self.notes.names.get(int(row["group"]), f"#{int(row['group'])}")
        group = self.notes.members.get(name)
        peer = int(row["peer"])
        if peer >= 0 and group is not None and group.ranks is not None and peer < len(group.ranks):
            peer = group.ranks[peer]
        completed = int(row["completed"])
        return Operation(
            group=name, sequence=int(row["sequence"]), name=_named(blackbox.OPERATIONS, row["operation"]),
            dtype=_named(blackbox.DTYPES, row["dtype"]) if row["tensors"] else "", elements=int(row["elements"]),
            shape=tuple(int(size) for size in row["shape"][: min(int(row["ndim"]), 8)]),
            peer=peer if peer >= 0 else None, tag=int(row["tag"]), site=self.notes.sites.get(int(row["site"])),
            entered=self.unix(row["entered"]), completed=self.unix(completed) if completed else None,
            failed=bool(row["outcome"] & blackbox.FAILED), reduce=_named(blackbox.REDUCTIONS, row["reduction"]),
            tensors=int(row["tensors"]),
            caller=self.notes.sites.get(int(row["caller"])),
            certain=not row["flags"] & blackbox.FLAG_NO_COMPLETION,
        )  # fmt: skip

    def read_notes(self) -> Notes:
        """Read the lines appended since the last call; a line still being written waits for the next."""
        (head,) = blackbox.HEADS.unpack_from(self._map, blackbox.NOTES_HEAD)
        end = min(int(head), self._notes_size)
        data = self._map[self._notes_at + self._notes_read : self._notes_at + end]
        whole = data.rfind(b"\n") + 1
        torn = data.find(b"\0")
        if 0 <= torn < whole and len(data) < 1 << 16:
            whole = data.rfind(b"\n", 0, torn) + 1  # reserved, not yet written: come back
        for line in data[:whole].splitlines():
            try:
                _sort_out(self.notes, line.strip(b"\0").decode(errors="replace").split("\t"))
            except (ValueError, IndexError, KeyError, TypeError, AttributeError, msgspec.DecodeError):
                self.notes.dropped += 1
        self._notes_read += whole
        return self.notes


def _named(names: tuple[str, ...], number: Any) -> str:
    return names[int(number)] if int(number) < len(names) else f"#{int(number)}"


def _whole(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which records are whole; the arithmetic of blackbox.check_word on columns (it wraps at 64 bits, as there)."""
    u64 = np.uint64
    place = rows["group"].astype(u64) << u64(32) | rows["site"].astype(u64)
    kind = rows["operation"].astype(u64) | rows["dtype"].astype(u64) << u64(16)
    kind |= rows["peer"].astype(np.uint32).astype(u64) << u64(32)
    mixed = rows["number"] ^ rows["entered"] * u64(3) ^ rows["sequence"] * u64(5) ^ rows["elements"] * u64(7)
    mixed = mixed ^ place * u64(11) ^ kind * u64(13)
    whole: np.ndarray[Any, np.dtype[np.bool_]] = ~mixed == rows["check"]
    return whole


def _sort_out(notes: Notes, fields: list[str]) -> None:
    kind = fields[0]
    if kind == Note.SITE:
        notes.sites[int(fields[1])] = Place(fields[4], int(fields[2]), fields[3])
    elif kind == Note.GROUP:
        notes.names[int(fields[1])] = fields[3]
        notes.backends[fields[3]] = fields[2]
    elif kind == Note.WORD:
        notes.words.append(fields[1])
    elif kind in _READ_AS_JSON:
        _READ_AS_JSON[kind](notes, msgspec.json.decode(fields[1]))
    else:
        notes.dropped += 1


def _take_members(notes: Notes, made: Any) -> None:
    ranks = tuple(int(rank) for rank in made["ranks"])
    notes.members[str(made["name"])] = Group(str(made["name"]), ranks, str(made["description"]))


def _take_facts(notes: Notes, found: Any) -> None:
    notes.facts.extend(fact for fact in found if isinstance(fact, dict))


def _take_raised(notes: Notes, raised: Any) -> None:
    notes.raised = Raised(str(raised["type"]), str(raised["text"]), _place(raised))


def _take_ended(notes: Notes, ended: Any) -> None:
    notes.ended = Ended(str(ended["how"]), _place(ended), float(ended["time"]))


def _take_trouble(notes: Notes, trouble: Any) -> None:
    notes.troubles.append(msgspec.convert(trouble, Trouble))


def _take_warned(notes: Notes, warned: Any) -> None:
    notes.warnings.append((str(warned["about"]), str(warned["text"])))


def _take_saved(notes: Notes, declared: Any) -> None:
    if declared.get("loaded"):
        notes.loaded = int(declared["step"])
    else:
        notes.saved = int(declared["step"])


def _take_preempted(notes: Notes, preempted: Any) -> None:
    notes.preempted = int(preempted["status"])


_READ_AS_JSON: Mapping[str, Callable[[Notes, Any], None]] = {
    Note.MEMBERS: _take_members,
    Note.FACTS: _take_facts,
    Note.RAISED: _take_raised,
    Note.ENDED: _take_ended,
    Note.TROUBLE: _take_trouble,
    Note.SAVED: _take_saved,
    Note.WARNED: _take_warned,
    Note.PREEMPTED: _take_preempted,
}


def _place(value: Mapping[str, Any]) -> Place | None:
    return Place(str(value["file"]), int(value["line"]), str(value["function"])) if "file" in value else None


def step_seconds(table: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Durations in seconds of the steps inferred from the repeating pattern of the newest calls; empty without one.

    The pattern's length is the shortest shift under which at least 95 % of the last 1,024 calls meet one of the same
    operation, group, size and call site.
    """
    rows = table[-1024:]
    count = len(rows)
    kinds = rows["operation"].astype(np.uint64) * np.uint64(1_000_003) ^ rows["group"].astype(np.uint64) << np.uint64(
        20
    )
    kinds = kinds ^ rows["elements"] * np.uint64(31) ^ rows["site"].astype(np.uint64) << np.uint64(40)
    for shift in range(1, count // 3 + 1):
        if np.mean(kinds[shift:] == kinds[:-shift]) >= 0.95:
            begins = rows["entered"][count % shift :: shift].astype(np.float64)
            return np.diff(begins) / 1e9
    return np.empty(0)
