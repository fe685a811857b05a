"""What logs say: lines told apart by rank, the signals in them, the tracebacks, and how far each rank came.

``scan.py`` finds the lines that matter in one pass, ``lines.py`` takes a line's prefix (rank, host, time) off,
``signals.py`` is the table of what can be said, ``reader.py`` puts it together. Nothing here judges: a signal is what a
line says, a cause is what ``rules/logs`` makes of all of them.
"""

from __future__ import annotations

import msgspec

from holdfast.facts.ranks import Place


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line of a log without its prefix. ``time`` in Unix seconds, ``number`` counts from 1 within ``source``."""

    text: str
    source: str
    number: int
    rank: int | None = None
    host: str = ""
    time: float | None = None


class Signal(msgspec.Struct, frozen=True, gc=False):
    """Something that a line says, such as ``watchdog-timeout``: never a cause.

    ``fields`` is what it says of it, ``order`` counts the signals in the order in which they were read.
    """

    name: str
    line: Line
    fields: dict[str, str | int | float] = {}
    order: int = 0


class LoggedTraceback(msgspec.Struct, frozen=True, gc=False):
    """A Python traceback: type and text of the exception, its frames (innermost first), the innermost of the user's."""

    type: str
    text: str
    line: Line
    frames: tuple[Place, ...] = ()
    place: Place | None = None


class LoggedRank(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far a rank came, as its lines tell. Work numbers are those that torch's watchdog prints for a group."""

    rank: int
    host: str = ""
    lines: int = 0
    last: Line | None = None
    enqueued: dict[str, int] = {}
    completed: dict[str, int] = {}
    exit_code: int | None = None


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a heap of logs says, in the order in which it was read. ``hosts`` are those of NCCL's lines."""

    signals: tuple[Signal, ...] = ()
    tracebacks: tuple[LoggedTraceback, ...] = ()
    ranks: dict[int, LoggedRank] = {}
    world_size: int | None = None
    hosts: frozenset[str] = frozenset()
    last: Line | None = None
    lines: int = 0
    bytes: int = 0
    unseen: tuple[str, ...] = ()
