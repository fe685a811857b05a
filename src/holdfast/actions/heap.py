"""The heap of evidence while it is sorted: pieces by kind, what was read of each, and the tables that they make."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

import msgspec

from holdfast.errors import DumpUnreadable, SnapshotUnreadable
from holdfast.facts import box_files, collective_history, dumps, flight_recorder, memory_snapshots, stack_files
from holdfast.facts.box_files import BoxTable
from holdfast.facts.dumps import DumpTable
from holdfast.facts.evidence import Ignored, Kind, Piece
from holdfast.facts.evidence.streams import buffered
from holdfast.facts.flight_recorder import Dump
from holdfast.facts.memory_snapshots import Snapshot
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Group
from holdfast.facts.reduced_dumps import Reduced
from holdfast.facts.stack_files import StackTable
from holdfast.findings import Fact, Verdict

#: Told how many files were found and how many bytes were read so far, and the name of the file.
Watch = Callable[[int, int, str], None]

MOST_REPORT_BYTES = 256 << 20


class ReadPiece(msgspec.Struct, frozen=True):
    """A file that was read; ``trouble`` says why not to its end."""

    name: str
    kind: Kind
    bytes: int
    trouble: str = ""


@dataclass
class Heap:
    """Sorts pieces by kind while they are found."""

    watch: Watch | None
    read: list[ReadPiece] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    earlier: Verdict | None = None
    _later: dict[Kind, list[Piece]] = field(default_factory=dict)
    _begun: list[tuple[Piece, list[int]]] = field(default_factory=list)
    _bytes: int = 0

    def sort(self, found: Iterator[Piece | Ignored]) -> Iterator[Piece]:
        """Give the logs, at once; keep the others, and what was ignored."""
        for item in found:
            if isinstance(item, Ignored):
                self.ignored.append(item)
                continue
            piece = self._counted(item)
            if piece.kind is Kind.LOG:
                yield piece
            else:
                self._later.setdefault(piece.kind, []).append(piece)

    def _counted(self, piece: Piece) -> Piece:
        """The piece, whose streams count what is read of them, and which never fails to open."""
        count = [0]
        self._begun.append((piece, count))

        def add(size: int) -> None:
            count[0] += size
            self._bytes += size
            if self.watch is not None:
                self.watch(len(self._begun), self._bytes, piece.name)

        def open_counted() -> BinaryIO:
            try:
                inner = piece.open()
            except OSError as error:
                piece.troubles.append((error.strerror or str(error)).lower())
                return io.BytesIO()
            count[0] = 0
            return buffered(_Counting(inner, add), piece.size)

        return replace(piece, open=open_counted)

    def settle_sizes(self) -> None:
        """Write down what was read, once all was."""
        self.read = [
            ReadPiece(piece.name, piece.kind, count[0] or piece.size or 0, "; ".join(piece.troubles))
            for piece, count in self._begun
        ]

    def has(self, kind: Kind) -> bool:
        """Whether a piece of that kind was found."""
        return any(piece.kind is kind for piece, _ in self._begun)

    def boxes(self) -> BoxTable:
        """The table that the boxes make."""
        made = box_files.read(self._later.get(Kind.BOX, ()))
        self._refuse(made.ignored)
        return made

    def table(self, boxes: Summary | None) -> Summary | None:
        """The boxes' table, or the one that an incident's report keeps, which has stacks and exit codes too."""
        kept = boxes
        for piece in self._later.get(Kind.REPORT, ()):
            told = self._told(piece)
            if isinstance(told, Summary) and (kept is None or told.time >= max(_started(kept), kept.time)):
                kept = told
        return kept

    def _told(self, piece: Piece) -> Summary | None:
        with piece.open() as stream:
            data = stream.read(MOST_REPORT_BYTES)
        try:
            content = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._refuse([Ignored(piece.name, "it is no whole JSON document")])
            return None
        if isinstance(content, dict) and "ranks" in content:
            told = box_files.told(content)
            if told is not None and told.ranks:
                return told
        verdict = _verdict_in(content)
        if verdict is None or len(self._begun) > 1:
            self._refuse([Ignored(piece.name, "it is holdfast's own; the evidence beside it is judged anew")])
        self.earlier = verdict or self.earlier
        return None

    def dumps(self, known: Mapping[str, Group]) -> DumpTable | None:
        """The table that the flight recorder's dumps make; ``known`` are groups that the boxes name."""
        made = dumps.reduce(self._dumps())
        self._refuse(made.ignored)
        return dumps.table(made.reduced, known) if made.reduced.ranks else None

    def reduced(self) -> Reduced:
        """The dumps, reduced; pieces of any other kind are refused."""
        for kind in self._later.keys() - {Kind.DUMP, Kind.REDUCED}:
            why = "it is no dump of the flight recorder"
            self._refuse([Ignored(piece.name, why) for piece in self._later[kind]])
        made = dumps.reduce(self._dumps())
        self._refuse(made.ignored)
        made.reduced.unseen += (f"{item.name}: {item.why}" for item in made.ignored if item.lost)
        return made.reduced

    def _dumps(self) -> tuple[Piece, ...]:
        return (*self._later.get(Kind.DUMP, ()), *self._later.get(Kind.REDUCED, ()))

    def dump_of(self, table: DumpTable | None, rank: int) -> Dump | None:
        """The dump of one rank, whole; None where there is none."""
        file = table.files.get(rank) if table is not None else None
        for piece in self._later.get(Kind.DUMP, ()):
            if piece.name == file:
                try:
                    with piece.open() as stream:
                        return flight_recorder.parse(stream.read(flight_recorder.MOST_BYTES + 1), piece.name)
                except (DumpUnreadable, OSError, EOFError):
                    return None
        return None

    def stacks(self, by_pid: Mapping[int, int], world_size: int) -> StackTable:
        """The table that files of stacks make, with what else is known of processes and of the job's size."""
        made = stack_files.read(self._later.get(Kind.STACKS, ()), by_pid, world_size)
        self._refuse(made.ignored)
        return made

    def snapshots(self) -> list[Snapshot]:
        """The snapshots of GPU memory that can be read."""
        found = []
        for piece in self._later.get(Kind.SNAPSHOT, ()):
            try:
                with piece.open() as stream:
                    found.append(memory_snapshots.parse(stream.read(memory_snapshots.MOST_BYTES + 1), piece.name))
            except SnapshotUnreadable as error:
                self._refuse([Ignored(piece.name, error.why, lost=True)])
        return found

    def collectives(self) -> tuple[Fact, ...]:
        """What the history of collectives tells."""
        told, ignored = collective_history.from_pieces(self._later.get(Kind.HISTORY, ()))
        self._refuse(ignored)
        return told

    def _refuse(self, items: Sequence[Ignored]) -> None:
        self.ignored += items
        self.refused |= {item.name for item in items}


class _Counting(io.RawIOBase):
    """Tells how much of a stream is read."""

    def __init__(self, inner: BinaryIO, add: Callable[[int], None]) -> None:
        super().__init__()
        self._inner, self._add = inner, add

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: object) -> int:
        """As of any raw stream."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        data = self._inner.read(len(view)) or b""
        view[: len(data)] = data
        self._add(len(data))
        return len(data)

    def close(self) -> None:
        """Close the inner stream too."""
        if not self.closed:
            self._inner.close()
        super().close()


def _started(table: Summary) -> float:
    return max((state.started for state in table.ranks), default=0.0)


def _verdict_in(content: Any) -> Verdict | None:
    """The verdict in an envelope, or by itself."""
    if isinstance(content, dict):
        content = content.get("verdict", content)
    try:
        return msgspec.convert(content, Verdict)
    except (msgspec.ValidationError, OverflowError):
        return None
