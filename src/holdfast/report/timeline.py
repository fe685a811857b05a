"""What the picture of an incident is drawn from: a lane a rank, and on it the spans of time that the rank spent.

Times are Unix seconds. The watcher and ``diagnose`` fill this from boxes; the report draws it and asks nothing more.
"""

from __future__ import annotations

import msgspec


class Span(msgspec.Struct, frozen=True):
    """A stretch of time in one collective, transfer or phase.

    ``end`` is None while it has not completed. ``label`` is the same on every rank that takes part (``all_reduce
    #31``); ``kind`` is the operation's name (``all_reduce``, ``recv``) or ``phase``, and decides the colour; ``detail``
    is one line more: group, dtype, size, call site.
    """

    start: float
    end: float | None
    label: str
    kind: str
    detail: str = ""


class Lane(msgspec.Struct, frozen=True):
    """One rank and its ``spans``, oldest first.

    ``state`` says how it is (``asleep``), ``place`` where in the source code (file:line); ``stack_lines`` is its Python
    stack, one frame a line, innermost first.
    """

    rank: int
    host: str
    spans: tuple[Span, ...]
    state: str
    place: str
    stack_lines: tuple[str, ...] = ()


class Timeline(msgspec.Struct, frozen=True):
    """All lanes, and the time that the picture covers; ``end`` is when the verdict was made."""

    lanes: tuple[Lane, ...]
    begin: float
    end: float
