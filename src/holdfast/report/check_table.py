"""Print the table of checks: one line per check, marked with its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TextIO

import msgspec

from holdfast.core.findings import Level, Verdict
from holdfast.core.text import one_line, pluralize
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document
from holdfast.report.terminal import MARKS


class CheckState(StrEnum):
    """State of a check or stage: its most severe finding, ok, or absent (not on this host)."""

    OK = "ok"
    ABSENT = "absent"
    ERROR = Level.ERROR.value
    UNKNOWN = Level.UNKNOWN.value
    WARNING = Level.WARNING.value
    NOTE = Level.NOTE.value


#: The mark of each state, in the order of display.
MARKS_OF_STATES = {
    CheckState.OK: "✓",
    CheckState.ABSENT: "-",
    **{CheckState(level.value): mark for level, mark in MARKS.items()},
}


class CheckLine(msgspec.Struct, frozen=True):
    """One check: name, host, state, and the observed values."""

    name: str
    host: str
    state: CheckState
    text: str


def render_checks(
    lines: Sequence[CheckLine],
    *,
    file: TextIO,
    elapsed_s: float,
    width: int | None = None,
    noun: str = "check",
) -> None:
    """Print the table with one section per host; ``noun`` names what a line represents."""
    counts = Counter(line.state for line in lines)
    parts = [f"{counts[state]} {state}" for state in MARKS_OF_STATES if counts[state]]
    sections = [
        ReportSection(
            host,
            tuple(
                ReportRow(f"{line.name}: {one_line(line.text)}", mark=MARKS_OF_STATES[line.state])
                for line in lines
                if line.host == host
            ),
        )
        for host in dict.fromkeys(line.host for line in lines)
    ]
    headline = f"{pluralize(len(lines), noun)} in {elapsed_s:.1f} s: {', '.join(parts)}"
    draw_document(ReportDocument("", headline, "plain", tuple(sections), framed=False), file, width)


def warning_state(verdict: Verdict) -> str:
    """Return the headline for a verdict with warnings only."""
    return f"no blocking problem; {pluralize(len(verdict.suspects), 'warning')}"
