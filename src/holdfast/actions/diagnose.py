"""From a heap of evidence to one verdict: pieces sorted by kind, facts of each kind, a verdict of each, one of all.

Logs are read while they are found, so that a compressed archive is gone through once; boxes, dumps and reports wait for
the end, because their tables need all of them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

import msgspec

from holdfast.actions.incident import timeline
from holdfast.actions.judgement import Judgement
from holdfast.errors import MissingFile
from holdfast.facts import box_files, dumps
from holdfast.facts.dumps import DumpTable
from holdfast.facts.evidence import Ignored, Kind, Piece
from holdfast.facts.evidence.gather import STANDARD_INPUT, gather
from holdfast.facts.evidence.streams import Limits, buffered
from holdfast.facts.logs import LogFacts, reader
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Life
from holdfast.findings import Level, Verdict
from holdfast.report.html import incident_page
from holdfast.report.timeline import Timeline
from holdfast.rules import dumps as rules_of_dumps
from holdfast.rules import stall
from holdfast.rules.logs.judge import judge as judge_logs
from holdfast.rules.verdict import QUESTION, merge

#: Told how many files were found and how many bytes were read so far, and the name of the file.
Watch = Callable[[int, int, str], None]

MOST_REPORT_BYTES = 256 << 20
#: Files listed on the page, of those read and of those ignored.
MOST_LISTED = 100
#: A job whose processes live and that advanced so short ago is not called stuck.
ALIVE_S = 5.0
#: What only a look at the living processes could rule out.
_NEEDS_PROCESSES = frozenset({"rank-killed", "rank-stopped", "host-oom-killed"})


class ReadPiece(msgspec.Struct, frozen=True):
    """A file that was read; ``trouble`` says why not to its end."""

    name: str
    kind: Kind
    bytes: int
    trouble: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, and what it rests on. ``summary`` and ``dumps`` are the tables of ranks, where there are any."""

    verdict: Verdict
    read: tuple[ReadPiece, ...]
    ignored: tuple[Ignored, ...]
    elapsed_s: float
    logs: LogFacts | None = None
    summary: Summary | None = None
    dumps: DumpTable | None = None

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 a root of level error, 2 nothing could be read, 3 it could not be judged."""
        if not self.read:
            return 2
        root = self.verdict.root
        if root is not None:
            return {Level.ERROR: 1, Level.UNKNOWN: 3}.get(root.level, 0)
        blind = not any((self.logs, self.summary, self.dumps))
        return 3 if self.verdict.suspects or blind else 0


def diagnose(
    paths: Sequence[str],
    *,
    limits: Limits | None = None,
    watch: Watch | None = None,
    read_logs: Callable[[Iterator[Piece]], LogFacts] = reader.read,
) -> Diagnosis:
    """Read everything under ``paths`` and judge it; ``read_logs`` reads the logs among it.

    Raises:
        MissingFile: none of the paths is there.
    """
    begun = time.monotonic()
    heap = _Heap(watch)
    logs = read_logs(heap.sort(gather(paths, limits)))
    boxes = heap.boxes()
    table = heap.table(boxes)
    dumped = heap.dumps()
    heap.settle_sizes()
    verdicts = [_judge_table(table)] if table is not None else []
    verdicts += [rules_of_dumps.judge(dumped)] if dumped is not None else []
    said = judge_logs(logs) if heap.has(Kind.LOG) else None
    read = tuple(item for item in heap.read if item.name not in heap.refused)
    if heap.ignored and not read and all(_is_missing(item, paths) for item in heap.ignored):
        raise MissingFile(", ".join(paths[:4]) or "nothing")
    verdict = merge(verdicts, said) if verdicts or said else heap.earlier or Verdict(question=QUESTION)
    verdict = msgspec.structs.replace(verdict, unseen=(*verdict.unseen, *_unseen(read)))
    return Diagnosis(
        verdict, read, tuple(heap.ignored), time.monotonic() - begun, logs if said else None, table, dumped
    )  # fmt: skip


def _is_missing(item: Ignored, paths: Sequence[str]) -> bool:
    return item.name in paths and item.name != STANDARD_INPUT and item.why == "no such file or directory"


def _unseen(read: Sequence[ReadPiece]) -> list[str]:
    return [f"{item.name}: {item.trouble}" for item in read if item.trouble][:64]


def page(found: Diagnosis) -> str:
    """The diagnosis as one page; with the picture of the ranks where boxes tell of them."""
    table = found.summary
    drawn = timeline(table) if table is not None else Timeline((), 0.0, 0.0)
    facts = table.facts if table is not None else ()
    run = {"read": f"{len(found.read)} files", "ignored": f"{len(found.ignored)} files"}
    run |= {item.name: f"{item.kind}, {item.bytes:,} bytes" for item in found.read[:MOST_LISTED]}
    run |= {item.name: f"ignored: {item.why}" for item in found.ignored[:MOST_LISTED]}
    return incident_page(found.verdict, drawn, title="diagnosis", facts=facts, run=run)


@dataclass
class _Heap:
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

    def boxes(self) -> Summary | None:
        """The table that the boxes make."""
        made = box_files.read(self._later.get(Kind.BOX, ()))
        self._refuse(made.ignored)
        return made.summary

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

    def dumps(self) -> DumpTable | None:
        """The table that the flight recorder's dumps make."""
        pieces = self._later.get(Kind.DUMP, ())
        if not pieces:
            return None
        made = dumps.read(pieces)
        left_out = [piece.name for piece in pieces if piece.name not in made.files.values()]
        for name in left_out:
            why = next((text for text in made.unseen if name in text), "another dump of its rank is newer")
            self._refuse([Ignored(name, why)])
        return made if made.ranks else None

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


def _judge_table(table: Summary) -> Verdict:
    """The verdict over a table of ranks; a job that lives and advances, and in which none failed, is no case."""
    living = [state for state in table.ranks if state.life == Life.RUNNING]
    advanced_s = time.time() - table.silent_since
    failed = any(state.raised is not None for state in table.ranks)
    if living and not failed and advanced_s < ALIVE_S:
        return Verdict(question=QUESTION, unseen=(f"the job runs; it advanced {max(advanced_s, 0):.1f} s ago",))
    verdict = Judgement(stall.Limits()).judge(table)
    if all(state.life in (Life.UNKNOWN, Life.DEAD) and state.exit_code is None for state in table.ranks):
        known = tuple(out for out in verdict.ruled_out if out.cause not in _NEEDS_PROCESSES)
        verdict = msgspec.structs.replace(
            verdict, ruled_out=known, unseen=(*verdict.unseen, "the processes themselves: there are only their boxes")
        )
    return verdict
