"""Read logs: signals and tracebacks in order, and the progress of each rank.

One pass over every file finds the matching lines (``scan.py``); only those are parsed, and the last
line of each file, which is often all that a rank logs about a failure.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.core.gc_pause import gc_paused
from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.diagnose.evidence import EvidenceFile
from holdfast.diagnose.evidence.streams import ReadableStream
from holdfast.diagnose.logs import LogFacts, LoggedRank, LoggedTraceback, LogLine
from holdfast.diagnose.logs.bounded_signals import MAX_TRACEBACKS, BoundedSignals, first_and_last
from holdfast.diagnose.logs.carried_logs import LogTransport, is_plain
from holdfast.diagnose.logs.file_names import actor_pid_in_name, rank_in_name
from holdfast.diagnose.logs.lines import LineParser
from holdfast.diagnose.logs.rank_attribution import (
    NCCL_PROCESS,
    parse_actor_pid,
    rank_of_actor,
    record_actor_rank,
)
from holdfast.diagnose.logs.samples import LogSampler
from holdfast.diagnose.logs.scan import ScanHit, Scanner
from holdfast.diagnose.logs.signals import ROWS, ScanRow, extract_fields
from holdfast.diagnose.transports import CarriedLine
from holdfast.host.processes.user_code import innermost_user_frame

MAX_FRAMES = 64

Fields = dict[str, str | int | float]

#: Signals of nearly every line of a healthy log: sampled in the middle of a long log.
SPARSE_SIGNALS = frozenset(
    """
    progress pace evaluation checkpoint-word preparing rank-elements process-rank actor-failed
    kernel-line saving working took-long left-loop input-total version-stated memory-reading
    rank-pair pid-rank actor-rank
    """.split()
)

#: Those of them whose search costs more than that of all other signals.
FREQUENT_SIGNALS = frozenset({"progress", "pace", "input-total", "memory-reading"})

_TRACEBACK_SIGNALS = frozenset({"notice", "traceback", "frame", "exception"})
#: The last line of a traceback whose exception has an unusual name: it is not indented.
_LAST_LINE = re.compile(
    r"(?P<type>(?:(?:\w+|<locals>)\.)+[^\W\d]\w*|[^\W\da-z_]\w*)(?:: (?P<text>.*))?$"
)
#: A notice is at most this many lines above its traceback.
_NOTICE_LINES = 3
#: Frames, and the source lines below them, have at most so many lines between them.
_FRAME_LINES = 4
#: Watchdog lines are about one process group, which the line's prefix names.
_GROUP_SIGNALS = frozenset({"work-status", "watchdog-timeout"})
_GROUP = re.compile(rb"\[PG (?:ID \w+ PG GUID |ID )?(\w+(?:\([\w-]{1,60}\))?)")


def read_logs(files: Iterable[EvidenceFile]) -> LogFacts:
    """Return all facts in ``files``. Raises OSError if a file cannot be read to its end."""
    reader = LogReader()
    with gc_paused():
        for file in files:
            if file.content is not None:
                reader.add_small(file.name, file.content)
                continue
            with file.open() as stream:
                reader.add(file.name, stream)
    return reader.facts()


def create_scanner() -> Scanner:
    """Return a scanner for all signals."""
    patterns = [(row.name, row.find or row.expression, row.ignore_case) for row in ROWS]
    return Scanner(patterns, sparse=SPARSE_SIGNALS, frequent=FREQUENT_SIGNALS, followed={"frame"})


@dataclass
class _OpenTraceback:
    """A traceback whose exception line was not read yet; ``guess`` is the likely exception."""

    begin: LogLine
    header: int = 0
    notice: str = ""
    frames: list[SourceLine] = field(default_factory=list)
    guess: LoggedTraceback | None = None
    last: int = 0

    def close(self, kind: str, text: str, line: LogLine) -> LoggedTraceback:
        """Return the traceback of an exception of type ``kind`` on ``line``."""
        frames = tuple(reversed(self.frames))
        place = innermost_user_frame(ThreadStack(frames)) if frames else None
        return LoggedTraceback(kind, text, line, frames, place, self.header, self.notice)


class _TracebackCollector:
    """The tracebacks of several files; ranks may interleave theirs in one file."""

    def __init__(self) -> None:
        self._source = ""
        self._open: dict[int | None, _OpenTraceback] = {}
        self._notices: dict[int | None, LogLine] = {}
        self._complete: list[LoggedTraceback] = []

    def begin_file(self, name: str) -> None:
        """Close the tracebacks of the previous file."""
        if self._open or (self._complete and self._complete[-1].line.source == self._source):
            self._complete = list(self.all())
        self._source = name
        self._open.clear()
        self._notices.clear()

    def add_signal(self, name: str, line: LogLine, fields: Fields) -> None:
        """Add a line of a traceback; ``name`` is one of _TRACEBACK_SIGNALS."""
        if name == "notice":
            self._notices[line.rank] = line
        elif name == "traceback":
            self._begin(line)
        else:
            self._add_part(name, self._continued(line), fields)

    def _begin(self, line: LogLine) -> None:
        before = self._open.pop(line.rank, None)
        if before is not None and before.guess is not None:
            self._add(before.guess)
        notice = self._notices.pop(line.rank, None)
        near = notice is not None and line.number - notice.number <= _NOTICE_LINES
        text = notice.text if notice and near else ""
        self._open[line.rank] = _OpenTraceback(line, line.number, text, last=line.number)

    def _add_part(self, name: str, line: LogLine, fields: Fields) -> None:
        """Add a frame, or the last line."""
        if name == "frame":
            trace = self._open.setdefault(line.rank, _OpenTraceback(line))
            trace.last = line.number
            if len(trace.frames) < MAX_FRAMES:
                function = str(fields.get("function", ""))
                trace.frames.append(SourceLine(str(fields["file"]), int(fields["line"]), function))
            return
        trace = self._open.pop(line.rank, _OpenTraceback(line))
        if trace.guess is not None and line.number > trace.guess.line.number + 1:
            self._add(trace.guess)  # other lines followed it: it was the last of its traceback
            trace = _OpenTraceback(line)
        self._add(trace.close(str(fields["type"]), str(fields.get("text", "")), line))

    def _continued(self, line: LogLine) -> LogLine:
        """Return the line, with the rank of the record that it continues.

        A logger may state the rank in the first line of a record only, that of the header.
        """
        if line.rank is not None or None in self._open or len(self._open) != 1:
            return line
        ((rank, trace),) = self._open.items()
        return replace(line, rank=rank) if line.number - trace.last <= _FRAME_LINES else line

    def guess_exception(self, line: LogLine) -> None:
        """Keep the first line after the frames of an open traceback that may be its last line."""
        trace = self._open.get(line.rank)
        if trace is None or not trace.header or not trace.frames or trace.guess is not None:
            return
        found = _LAST_LINE.match(line.text.strip())
        if found is not None and _indent(line.text) <= _indent(trace.begin.text):
            trace.guess = trace.close(found["type"], found["text"] or "", line)

    def _add(self, traceback: LoggedTraceback) -> None:
        self._complete.append(traceback)
        if len(self._complete) > MAX_TRACEBACKS:
            self._complete = list(first_and_last(self._complete))

    def all(self) -> tuple[LoggedTraceback, ...]:
        """Return the complete tracebacks, and the open ones of this file by guess or cut off."""
        cut = [trace for trace in self._open.values() if trace.header and trace.frames]
        ends = [trace.guess or trace.close("", "", trace.begin) for trace in cut]
        earlier = [one for one in self._complete if one.line.source != self._source]
        current = [one for one in self._complete if one.line.source == self._source]
        current = sorted((*current, *ends), key=lambda one: one.line.number)
        return first_and_last((*earlier, *current))


class LogReader:
    """Reads several logs one after the other, or one log that grows.

    Readers of the logs of one job may share a ``scanner``, and ``rank_by_process``, which maps
    processes of NCCL and Ray to ranks.
    """

    def __init__(
        self, scanner: Scanner | None = None, rank_by_process: dict[str, int] | None = None
    ) -> None:
        self._scanner = scanner or create_scanner()
        self._following = self._lines_of_log = 0
        self._file_rank: int | None = None
        self._file_actor: int | None = None
        self._transport = LogTransport()
        self._parser = LineParser("")
        self._signals = BoundedSignals()
        self._sampler = LogSampler()
        self._tracebacks = _TracebackCollector()
        self._ranks: dict[int, LoggedRank] = {}
        self._rank_by_process = {} if rank_by_process is None else rank_by_process
        self._hosts: set[str] = set()
        self._world_size: int | None = None
        self._last: LogLine | None = None
        self._lines = self._bytes = 0
        self._failed_rank: int | None = None
        self._failed_host = ""
        self._last_step = ("", 0)

    @property
    def is_decoding(self) -> bool:
        """Return whether the form that carries the lines of this log was recognized."""
        return self._transport.is_recognized

    def add(self, name: str, stream: ReadableStream, *, after_lines: int = 0) -> int:
        """Read ``stream`` to its end; return its number of lines.

        With ``after_lines`` the stream continues the previous log after that many lines.
        """
        if not after_lines:
            self._begin_log(name)
        log = self._transport.open(stream)
        lines = self._sampler.watch(name, self._file_rank, log, continues=after_lines > 0)
        self._add_hits(self._scanner.scan(lines, following=self._following), log.origin)
        self._sampler.count(name, self._scanner.line_feeds)
        self._lines += log.lines
        self._bytes += log.bytes
        return log.lines

    def add_small(self, name: str, data: bytes) -> None:
        """Read a small log of which ``data`` is all: as ``add``, without its cost per stream."""
        if not (data.endswith(b"\n") and is_plain(data)):
            self.add(name, io.BytesIO(data))
            return
        self._begin_log(name)
        self._sampler.add_whole(name, self._file_rank, data)
        self._add_hits(self._scanner.scan_small(data), _line_of_file)
        self._lines += self._scanner.lines
        self._bytes += len(data)

    def _begin_log(self, name: str) -> None:
        self._tracebacks.begin_file(name)
        self._file_rank, self._file_actor = rank_in_name(name), actor_pid_in_name(name)
        self._transport, self._parser = LogTransport(), LineParser(name, self._file_rank)
        self._failed_rank, self._failed_host = None, ""
        self._following = self._lines_of_log = 0

    def _add_hits(self, hits: Iterable[ScanHit], origin: Callable[[int], CarriedLine]) -> None:
        """Add the hits of the scanner, and the last line that it read."""
        before = self._lines_of_log
        parsed: LogLine | None = None
        is_counted = False
        for hit in hits:
            parsed = self._parser.parse(hit.line, hit.number + before, origin(hit.number))
            self._add_hit(hit, parsed)
            is_counted = bool(hit.rows)
        self._following = self._scanner.following
        self._lines_of_log += self._scanner.lines
        if self._scanner.last is None:
            return
        number, raw = self._scanner.last
        if parsed is None or parsed.number != number + before:
            parsed = self._parser.parse(raw, number + before, origin(number))
            is_counted = False
        self._last = parsed
        if not is_counted:
            self._count_line(parsed)

    def _add_hit(self, hit: ScanHit, line: LogLine) -> None:
        """Add a matching line."""
        process = NCCL_PROCESS.match(hit.line)
        if process is not None:
            self._hosts.add(process[2].decode())
            if line.rank is None:
                line = replace(line, rank=self._rank_by_process.get(process[1].decode()))
        line, actor = self._attribute_to_actor(line, hit.line)
        if hit.rows:
            self._count_line(line)
        for index in hit.rows:
            row = ROWS[index]
            if row.name == "progress" and self._last_step == (line.source, line.number):
                continue  # one line, one step
            owner, fields = _extract_fields(row, line, hit.line)
            if fields is None:
                continue
            if process is not None:
                fields |= _process_fields(row.name, process)
            if row.name in _GROUP_SIGNALS and (group := _GROUP.search(hit.line)) is not None:
                fields["group"] = group[1].decode()
            if row.name == "process-rank" and (pid := fields.get("pid", actor)) is not None:
                record_actor_rank(self._rank_by_process, int(pid), int(fields["rank"]))
            self._add_signal(row, owner, fields, process[1].decode() if process else "")
        self._tracebacks.guess_exception(line)

    def _attribute_to_actor(self, line: LogLine, raw: bytes) -> tuple[LogLine, int | None]:
        """Return the line with its actor's rank, and the actor's pid."""
        actor = None
        if self._file_rank is None:
            actor = parse_actor_pid(raw) if self._file_actor is None else self._file_actor
        if actor is None:
            return line, None
        if line.rank is None:
            return replace(line, rank=rank_of_actor(self._rank_by_process, actor)), actor
        if rank_of_actor(self._rank_by_process, actor) is None:
            self._signals.add("pid-rank", line, {"pid": actor, "rank": line.rank})
        record_actor_rank(self._rank_by_process, actor, line.rank)
        return line, actor

    def _count_line(self, line: LogLine) -> None:
        if line.rank is not None:
            known = self._ranks.get(line.rank)
            self._ranks[line.rank] = (
                LoggedRank(rank=line.rank, host=line.host, lines=1, last=line)
                if known is None
                else replace(known, host=line.host or known.host, lines=known.lines + 1, last=line)
            )

    def _add_signal(self, row: ScanRow, line: LogLine, fields: Fields, process: str) -> None:
        if row.name == "progress":
            self._last_step = line.source, line.number
        if row.name in _TRACEBACK_SIGNALS:
            self._tracebacks.add_signal(row.name, line, fields)
            return
        if row.name == "nccl-rank":
            self._rank_by_process[process] = int(fields["rank"])
            self._world_size = max(self._world_size or 0, int(fields["world"]))
        elif row.name == "work-status" and line.rank is not None:
            self._set_progress(line.rank, fields)
        elif row.name in ("failed-rank", "failed-code", "failed-host"):
            self._add_failure_table_row(row.name, fields)
        elif row.name == "actor-failed":
            rank = rank_of_actor(self._rank_by_process, int(fields["pid"]))
            if rank is not None:
                self._signals.add("worker-failed", line, {"rank": rank})
        self._signals.add(row.name, line, fields)

    def _set_progress(self, rank: int, fields: Fields) -> None:
        known, group = self._ranks[rank], str(fields.get("group", "0"))
        self._ranks[rank] = replace(
            known,
            enqueued={**known.enqueued, group: int(fields["enqueued"])},
            completed={**known.completed, group: int(fields["completed"])},
        )

    def _add_failure_table_row(self, name: str, fields: Fields) -> None:
        """Add a line of torchrun's failure table, which has one line per value."""
        if name == "failed-host":
            self._failed_host = str(fields["host"])
        elif name == "failed-rank":
            self._failed_rank = int(fields["rank"])
        elif self._failed_rank is not None:
            known = self._ranks.get(self._failed_rank) or LoggedRank(rank=self._failed_rank)
            host = known.host or self._failed_host
            self._ranks[self._failed_rank] = replace(
                known, exit_code=int(fields["code"]), host=host
            )
            self._failed_rank = None

    def facts(self) -> LogFacts:
        """Return the facts read so far."""
        return LogFacts(
            signals=self._signals.all(),
            tracebacks=self._tracebacks.all(),
            ranks=dict(self._ranks),
            world_size=self._world_size,
            hosts=frozenset(self._hosts),
            samples=self._sampler.all(),
            last=self._last,
            lines=self._lines,
            bytes=self._bytes,
        )


def _line_of_file(number: int) -> CarriedLine:
    """Return the origin of a line that no transport carries."""
    return CarriedLine(number, b"")


def _extract_fields(row: ScanRow, line: LogLine, raw: bytes) -> tuple[LogLine, Fields | None]:
    """Return the fields of ``row``, and the line without its rank if they are another rank's."""
    fields = extract_fields(row, line.text)
    if fields is not None:
        return line, fields
    # The match is in a prefix or progress bar.
    return replace(line, rank=None), extract_fields(row, raw.decode("utf-8", errors="replace"))


def _process_fields(name: str, process: re.Match[bytes]) -> Fields:
    """Return what the prefix of NCCL's line states of its process."""
    fields: Fields = {"device": int(process[3])}
    if name == "nccl-rank":
        fields["pid"] = int(process[1].rpartition(b":")[2])
    return fields


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
