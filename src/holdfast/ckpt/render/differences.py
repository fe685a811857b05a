"""Renders the differences between two checkpoints, one line per name pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from holdfast.core.text import format_duration, one_line, pluralize
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document

#: Rows printed per section; the JSON output has all of them.
SHOWN = 20
_LABELS = {
    "missing": "missing in B",
    "extra": "only in B",
    "shape": "shape",
    "dtype": "dtype",
    "values": "values",
    "unread": "unreadable",
}


def render_differences(  # noqa: PLR0913 - keyword-only
    *,
    first: tuple[str, str],
    second: tuple[str, str],
    lines: Sequence[tuple[str, str, int, str]],
    values: Sequence[str],
    not_compared: Sequence[str],
    unknown: bool = False,
    tensors: int,
    elapsed_s: float,
    file: TextIO,
) -> None:
    """Print both checkpoints (path, format) and (kind, pattern, tensor count, text) lines.

    ``unknown``: no difference was found, but not everything could be compared.
    """
    identical = not lines and not values
    headline = f"identical in {pluralize(tensors, 'tensor')}" if identical else "different"
    names = tuple(
        ReportRow(f"{one_line(path)} ({format_name})", mark=mark)
        for mark, (path, format_name) in zip("AB", (first, second), strict=True)
    )
    sections = [ReportSection("compared", names)]
    for kind, label in _LABELS.items():
        rows = [
            _row(pattern, number, text)
            for line_kind, pattern, number, text in lines
            if line_kind == kind
        ]
        sections.append(ReportSection(label, _limit_rows(rows)))
    sections.append(
        ReportSection("other values", _limit_rows([ReportRow(one_line(text)) for text in values]))
    )
    sections.append(
        ReportSection(
            "not compared", _limit_rows([ReportRow(one_line(text)) for text in not_compared])
        )
    )
    symbol, tone = ("✓", "fine") if identical else ("✗", "error")
    if unknown:
        symbol, tone, headline = "?", "unknown", "inconclusive"
    sections_with_rows = tuple(section for section in sections if section.rows)
    draw_document(
        ReportDocument(
            symbol,
            f"{headline} (compared in {format_duration(elapsed_s)})",
            tone,
            sections_with_rows,
        ),
        file,
        None,
    )


def _row(pattern: str, number: int, text: str) -> ReportRow:
    return ReportRow(
        f"{one_line(pattern)}: {one_line(text)}",
        aside=pluralize(number, "tensor") if number > 1 else "",
    )


def _limit_rows(rows: Sequence[ReportRow]) -> tuple[ReportRow, ...]:
    if len(rows) <= SHOWN + 1:
        return tuple(rows)
    return (*rows[:SHOWN], ReportRow(f"… and {len(rows) - SHOWN:,} more", style="aside"))
