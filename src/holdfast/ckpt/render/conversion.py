"""Renders the result of a conversion: what was written, compared and left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from holdfast.core.text import format_duration, one_line, pluralize
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.evidence_summary import size_text
from holdfast.report.sheet import draw_document

#: Rows printed per section; the JSON output has all of them.
SHOWN = 8


def render_conversion(  # noqa: PLR0913 - keyword-only
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    written: Sequence[str],
    compared: str,
    losses: Sequence[str],
    notes: Sequence[str],
    elapsed_s: float,
    size: int,
    file: TextIO,
) -> None:
    """Print source and target (path, format), the amounts, and the data the target lacks."""
    rate = f", {size_text(size / elapsed_s)}/s" if elapsed_s > 1 else ""
    sections = (
        ReportSection("from", (ReportRow(f"{one_line(source[0])} ({source[1]})"),)),
        ReportSection("to", (ReportRow(f"{one_line(target[0])} ({target[1]})"),)),
        ReportSection("written", tuple(ReportRow(one_line(line)) for line in written)),
        ReportSection("verified", (ReportRow(one_line(compared)),)),
        ReportSection("not written", _limit_rows(losses)),
        ReportSection("notes", _limit_rows(notes)),
    )
    headline = f"converted in {format_duration(elapsed_s)} ({size_text(size)}{rate})"
    symbol, tone = ("✓", "fine") if not losses else ("!", "warning")
    draw_document(
        ReportDocument(
            symbol, headline, tone, tuple(section for section in sections if section.rows)
        ),
        file,
        None,
    )


def list_names(names: Sequence[str]) -> str:
    """Return the first names and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def describe_counts(tensors: int, states: int) -> str:
    """Return the number of model and optimizer tensors as text."""
    more = f", {pluralize(states, 'optimizer tensor')}" if states else ""
    return f"{pluralize(tensors, 'model tensor')}{more}"


def _limit_rows(lines: Sequence[str]) -> tuple[ReportRow, ...]:
    rows = [ReportRow(one_line(line)) for line in lines[:SHOWN]]
    if len(lines) > SHOWN:
        rows.append(ReportRow(f"… and {len(lines) - SHOWN:,} more", style="aside"))
    return tuple(rows)
