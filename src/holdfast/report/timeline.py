"""Data of the incident chart: one lane per rank with time spans.

Times are Unix seconds. The watcher and ``diagnose`` fill it from trace files.
"""

from __future__ import annotations

import msgspec


class TimelineSpan(msgspec.Struct, frozen=True):
    """A time span in one collective, transfer or phase.

    ``end`` is None while it is in flight. ``label`` is equal on all participating ranks
    (``all_reduce #31``); ``kind`` is the operation (``all_reduce``, ``recv``) or ``phase`` and
    selects the colour; ``detail`` holds group, dtype, size and call site.
    """

    start: float
    end: float | None
    label: str
    kind: str
    detail: str = ""


class TimelineLane(msgspec.Struct, frozen=True):
    """One rank and its ``spans``, oldest first.

    ``state`` is the process state (``asleep``), ``place`` the source line (file:line);
    ``stack_lines`` is the Python stack, one frame per line, innermost first.
    """

    rank: int
    host: str
    spans: tuple[TimelineSpan, ...]
    state: str
    place: str
    stack_lines: tuple[str, ...] = ()


class Timeline(msgspec.Struct, frozen=True):
    """All lanes and the time range of the chart; ``end`` is the time of the verdict."""

    lanes: tuple[TimelineLane, ...]
    begin: float
    end: float
