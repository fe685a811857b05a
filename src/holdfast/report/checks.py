"""The table of checks for the terminal: one line each, marked by how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TextIO

import msgspec

from holdfast.findings import Level, Verdict
from holdfast.report.document import Document, Row, Section
from holdfast.report.terminal import MARKS
from holdfast.report.text import one_line, plural


class State(StrEnum):
    """How a check or a stage ended: as the gravest of its findings, well, or with nothing of the kind on this host."""

    OK = "ok"
    ABSENT = "absent"
    ERROR = Level.ERROR.value
    UNKNOWN = Level.UNKNOWN.value
    WARNING = Level.WARNING.value
    NOTE = Level.NOTE.value


_MARKS = {State.OK: "✓", State.ABSENT: "-", **{State(level.value): mark for level, mark in MARKS.items()}}


class Line(msgspec.Struct, frozen=True):
    """One check: its name, the host, how it ended, and what was seen."""

    name: str
    host: str
    state: State
    text: str


def render_checks(
    lines: Sequence[Line], *, file: TextIO, elapsed_s: float, width: int | None = None, called: str = "check"
) -> None:
    """Print the table, a section a host; ``called`` is what a line is about."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    counted = Counter(line.state for line in lines)
    parts = [f"{counted[state]} {state}" for state in _MARKS if counted[state]]
    sections = [
        Section(host, tuple(Row(f"{line.name}: {one_line(line.text)}", mark=_MARKS[line.state]) for line in lines
                            if line.host == host))
        for host in dict.fromkeys(line.host for line in lines)
    ]  # fmt: skip
    headline = f"{plural(len(lines), called)} in {elapsed_s:.1f} s: {', '.join(parts)}"
    draw(Document("", headline, "plain", tuple(sections), framed=False), file, width)


def warned(verdict: Verdict) -> str:
    """The headline where nothing would stop a job, and something was noticed."""
    return f"nothing would stop a job; {plural(len(verdict.suspects), 'warning')}"
