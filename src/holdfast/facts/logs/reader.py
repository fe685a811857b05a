"""Puts a heap of logs together: signals and tracebacks in order, and how far each rank came.

One pass over every file finds the lines that matter (``scan.py``); only those are taken apart. Of each file's end, a
little more is looked at: what a rank said last is often all that it said of the failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.facts.evidence import Piece
from holdfast.facts.evidence.streams import Readable
from holdfast.facts.logs import Line, LogFacts, LoggedRank, LoggedTraceback, Signal
from holdfast.facts.logs.kept import MOST_TRACEBACKS, KeptSignals
from holdfast.facts.logs.lines import parse
from holdfast.facts.logs.scan import Hit, Scanner
from holdfast.facts.logs.signals import ROWS, Row, fields
from holdfast.facts.logs.speakers import NCCL_PROCESS, actor_of, learn, rank_of_actor
from holdfast.facts.ranks import Place, Stack
from holdfast.facts.user_code import innermost_user

MOST_FRAMES = 64

#: What a healthy log says on nearly every line: searched for fully at both ends of a long log, and in samples between.
CHATTY = frozenset({
    "progress", "pace", "evaluation", "checkpoint-word", "preparing", "rank-elements", "process-rank", "actor-failed",
})  # fmt: skip

#: Ranks in names of files: torchrun's folders, and what people write, in one part of a path.
_TORCHRUN = re.compile(r"attempt_\d+/(?P<rank>\d{1,6})/std(?:out|err)\.log$")
_PARTS = re.compile(r"[/!]")
_PART_RANKS = (
    re.compile(r"(?:^|[_.-])rank[_-]?(?P<rank>\d{1,6})(?:[_.-]|$)", re.IGNORECASE),
    re.compile(r"(?:^|[_.-])(?:task|worker|proc)[_-](?P<rank>\d{1,6})\.(?:log|out|err|txt)$"),
)
_FRAME_ROWS = frozenset({"traceback", "frame", "exception"})


def rank_of(name: str) -> int | None:
    """The rank that a file's name tells, or else that of the innermost folder which tells one; None where none does."""
    found = _TORCHRUN.search(name)
    if found is not None:
        return int(found["rank"])
    for part in reversed(_PARTS.split(name)):
        for expression in _PART_RANKS:
            if (found := expression.search(part)) is not None:
                return int(found["rank"])
    return None


def read(pieces: Iterable[Piece]) -> LogFacts:
    """Everything that the logs among ``pieces`` say. Raises OSError where one cannot be read to its end."""
    reader = Reader()
    for piece in pieces:
        with piece.open() as stream:
            reader.add(piece.name, stream)
    return reader.facts()


class Reader:
    """Takes log after log, or one log that grows; ``facts`` tells what they have said so far.

    Readers of logs of one job may share ``processes`` (which process of NCCL's is which rank) and a ``scanner``.
    """

    def __init__(self, scanner: Scanner | None = None, processes: dict[str, int] | None = None) -> None:
        self._scanner = scanner or new_scanner()
        self._heap = _Heap({} if processes is None else processes)

    def add(self, name: str, stream: Readable, *, after_lines: int = 0) -> int:
        """Read ``stream`` to its end; how many lines it has.

        With ``after_lines`` the stream is what was added behind so many lines of the log that was read last.
        """
        scanner = self._scanner
        if not after_lines:
            self._heap.begin(name)
        for hit in scanner.scan(stream):
            self._heap.take(hit, after_lines)
        last = scanner.last
        self._heap.end(scanner.lines, scanner.bytes, last and (last[0] + after_lines, last[1]))
        return scanner.lines

    def facts(self) -> LogFacts:
        """All of it."""
        return self._heap.facts()


def new_scanner() -> Scanner:
    """A scanner for all that logs may say; it scans one stream at a time."""
    return Scanner([(row.name, row.find or row.expression, row.ignore_case) for row in ROWS], sparse=CHATTY)


@dataclass
class _Open:
    """A traceback whose exception has not come yet."""

    begun: Line
    frames: list[Place] = field(default_factory=list)


class _Heap:
    """What was gathered so far."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._source = ""
        self._file_rank: int | None = None
        self._year = 1970
        self._kept = KeptSignals()
        self._places: dict[int, int] = {}
        self._open: dict[tuple[str, int | None], _Open] = {}
        self._tracebacks: list[LoggedTraceback] = []
        self._ranks: dict[int, LoggedRank] = {}
        self._processes = processes
        self._hosts: set[str] = set()
        self._world: int | None = None
        self._last: Line | None = None
        self._lines = self._bytes = 0
        self._failed_rank: int | None = None
        self._failed_host = ""

    def begin(self, name: str) -> None:
        """A new file."""
        self._source, self._file_rank = name, rank_of(name)
        self._failed_rank, self._failed_host = None, ""
        self._open.clear()

    def end(self, lines: int, size: int, last: tuple[int, bytes] | None) -> None:
        """The file is at its end."""
        self._lines += lines
        self._bytes += size
        if last is not None:
            self._last = parse(last[1], self._source, last[0], rank=self._file_rank, year=self._year)
            self._see(self._last)

    def take(self, hit: Hit, after_lines: int) -> None:
        """One line in which something was found; ``after_lines`` stand in front of what is being read."""
        number = hit.number + after_lines
        line = parse(hit.line, self._source, number, rank=self._file_rank, year=self._year)
        process = NCCL_PROCESS.match(hit.line)
        if process is not None:
            self._hosts.add(process[2].decode())
        if line.rank is None and process is not None:
            line = _with_rank(line, self._processes.get(process[1].decode()))
        line, actor = self._by_actor(line, hit.line)
        self._see(line)
        for index in hit.rows:
            row = ROWS[index]
            said = fields(row, line.text)
            owner = line
            if said is None:  # it stood in a prefix, or in a progress bar, which may be another rank's
                said, owner = fields(row, hit.line.decode("utf-8", errors="replace")), _with_rank(line, None)
            if said is None:
                continue
            if process is not None:
                said["device"] = int(process[3])
            if row.name in _OF_GROUPS and (group := _GROUP.search(hit.line)) is not None:
                said["group"] = group[1].decode()
            if row.name == "process-rank" and (pid := said.get("pid", actor)) is not None:
                learn(self._processes, int(pid), int(said["rank"]))
            self._hear(row, owner, said, process[1].decode() if process else "")

    def _by_actor(self, line: Line, raw: bytes) -> tuple[Line, int | None]:
        """The line with its actor's rank, and the actor's pid; from a line with both it is learned who is who."""
        actor = actor_of(raw) if self._file_rank is None else None
        if actor is None:
            return line, None
        if line.rank is None:
            return _with_rank(line, rank_of_actor(self._processes, actor)), actor
        learn(self._processes, actor, line.rank)
        return line, actor

    def _see(self, line: Line) -> None:
        if line.rank is None:
            return
        known = self._ranks.get(line.rank) or LoggedRank(rank=line.rank)
        self._ranks[line.rank] = replace(known, host=line.host or known.host, lines=known.lines + 1, last=line)

    def _hear(self, row: Row, line: Line, said: dict[str, str | int | float], process: str) -> None:
        if row.name in _FRAME_ROWS:
            self._trace(row.name, line, said)
        if row.name == "nccl-rank":
            self._processes[process] = int(said["rank"])
            self._world = max(self._world or 0, int(said["world"]))
        elif row.name == "work-status" and line.rank is not None:
            self._progress(line.rank, str(said.get("group", "0")), int(said["enqueued"]), int(said["completed"]))
        elif row.name in ("failed-rank", "failed-code", "failed-host"):
            self._table(row.name, said)
        elif row.name == "actor-failed" and (rank := rank_of_actor(self._processes, int(said["pid"]))) is not None:
            self._kept.add(Signal("worker-failed", line, {"rank": rank}))
        if row.name not in _FRAME_ROWS:
            self._kept.add(Signal(row.name, line, said))

    def _progress(self, rank: int, group: str, enqueued: int, completed: int) -> None:
        known = self._ranks[rank]
        self._ranks[rank] = replace(
            known, enqueued={**known.enqueued, group: enqueued}, completed={**known.completed, group: completed}
        )

    def _table(self, name: str, said: dict[str, str | int | float]) -> None:
        """Of torchrun's table of failures, in which host, rank and exit code stand on lines of their own."""
        if name == "failed-host":
            self._failed_host = str(said["host"])
        elif name == "failed-rank":
            self._failed_rank = int(said["rank"])
        elif self._failed_rank is not None:
            known = self._ranks.get(self._failed_rank) or LoggedRank(rank=self._failed_rank)
            host = known.host or self._failed_host
            self._ranks[self._failed_rank] = replace(known, exit_code=int(said["code"]), host=host)
            self._failed_rank = None

    def _trace(self, name: str, line: Line, said: dict[str, str | int | float]) -> None:
        key = (self._source, line.rank)
        if name == "traceback":
            self._open[key] = _Open(line)
        elif name == "frame":
            trace = self._open.setdefault(key, _Open(line))
            if len(trace.frames) < MOST_FRAMES:
                trace.frames.append(Place(str(said["file"]), int(said["line"]), str(said.get("function", ""))))
        elif len(self._tracebacks) < MOST_TRACEBACKS:
            trace = self._open.pop(key, _Open(line))
            frames = tuple(reversed(trace.frames))
            place = innermost_user(Stack(frames)) if frames else None
            text = str(said.get("text", ""))
            self._tracebacks.append(LoggedTraceback(str(said["type"]), text, line, frames, place))

    def facts(self) -> LogFacts:
        """All of it."""
        return LogFacts(
            signals=self._kept.all(), tracebacks=tuple(self._tracebacks), ranks=dict(self._ranks),
            world_size=self._world, hosts=frozenset(self._hosts), last=self._last, lines=self._lines,
            bytes=self._bytes,
        )  # fmt: skip


#: What torch's watchdog says is said of one process group, whose name stands in the line's prefix.
_OF_GROUPS = frozenset({"work-status", "watchdog-timeout"})
_GROUP = re.compile(rb"\[PG (?:ID \w+ PG GUID |ID )?(\w+)")


def _with_rank(line: Line, rank: int | None) -> Line:
    return Line(line.text, line.source, line.number, rank, line.host, line.time)
