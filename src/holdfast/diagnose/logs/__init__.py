"""Facts in logs: signals, tracebacks, and the progress of each rank. Nothing here judges.

``scan.py`` finds the relevant lines in one pass, ``lines.py`` strips a line's prefix (rank, host,
time), ``signals/`` is the table of patterns, ``reader.py`` combines them. A signal is what a line
states; ``diagnose/log_rules`` derives causes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core.findings import Fact
from holdfast.core.rank_table import SourceLine

#: Longest text of a cited line, in characters.
MAX_CITED = 300


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """A log line without its prefix.

    ``number`` counts from 1 within ``source``; ``time`` is in Unix seconds. ``file_line`` is the
    number of the line in the file if it differs: a record may have several lines.
    """

    text: str
    source: str
    number: int
    rank: int | None = None
    host: str = ""
    time: float | None = None
    file_line: int = 0

    @property
    def origin(self) -> str:
        """``source:number``, the number as in the file."""
        return f"{self.source}:{self.file_line or self.number}"

    def as_fact(self) -> Fact:
        """Return the line as evidence of a finding."""
        return Fact(
            text=self.text.strip()[:MAX_CITED],
            origin=self.origin,
            rank=self.rank,
            host=self.host or None,
            time=self.time,
        )


class LoggedSignal(msgspec.Struct, frozen=True, gc=False):
    """What a line states, such as ``watchdog-timeout``; not a cause.

    ``fields`` are the named groups of the pattern, ``order`` is the position in reading order.
    """

    name: str
    line: LogLine
    fields: dict[str, str | int | float] = {}
    order: int = 0


class LoggedTraceback(msgspec.Struct, frozen=True, gc=False):
    """A Python traceback in a log.

    ``frames`` are innermost first; ``place`` is the innermost frame in the user's code. ``line`` is
    the exception's line, or the header's if the traceback is cut off; ``type`` is empty then.
    ``header`` is the number of the header's line, 0 for a line that only looks like an exception.
    ``notice`` is what Python prints above the header of an exception that does not end the process,
    such as ``Exception ignored in: …``.
    """

    type: str
    text: str
    line: LogLine
    frames: tuple[SourceLine, ...] = ()
    place: SourceLine | None = None
    header: int = 0
    notice: str = ""


#: Of 100,000 ranks of which most log none.
_NO_WORK: Mapping[str, int] = {}


def _no_work() -> Mapping[str, int]:
    return _NO_WORK


class LoggedRank(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Progress of a rank as logged.

    ``enqueued`` and ``completed`` are work numbers of torch's watchdog by process group.
    """

    rank: int
    host: str = ""
    lines: int = 0
    last: LogLine | None = None
    enqueued: Mapping[str, int] = msgspec.field(default_factory=_no_work)
    completed: Mapping[str, int] = msgspec.field(default_factory=_no_work)
    exit_code: int | None = None


class LogSample(msgspec.Struct, frozen=True, gc=False):
    """The raw beginning and end of a log, which do not overlap (``logs/samples.py``).

    ``rank`` is that of the file's name. ``tail`` follows ``lines_before`` lines, and begins within
    a line if ``cut``.
    """

    source: str
    rank: int | None
    head: bytes
    tail: bytes
    lines_before: int
    cut: bool


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts in a set of logs, in reading order. ``hosts`` are those in NCCL's lines."""

    signals: tuple[LoggedSignal, ...] = ()
    tracebacks: tuple[LoggedTraceback, ...] = ()
    ranks: dict[int, LoggedRank] = {}
    world_size: int | None = None
    hosts: frozenset[str] = frozenset()
    samples: tuple[LogSample, ...] = ()
    last: LogLine | None = None
    lines: int = 0
    bytes: int = 0
