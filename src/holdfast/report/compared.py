"""Two checkpoints for the terminal: what differs, a line for each pattern of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from holdfast.report.document import Document, Row, Section
from holdfast.report.text import duration, one_line, plural

#: Lines of one kind that are printed; the JSON has all of them.
SHOWN = 20
_LABELS = {
    "missing": "missing in B", "extra": "in B alone", "shape": "shape", "dtype": "dtype", "values": "numbers",
    "unread": "unreadable",
}  # fmt: skip


def render_compared(  # noqa: PLR0913 - each by its name
    *,
    first: tuple[str, str],
    second: tuple[str, str],
    lines: Sequence[tuple[str, str, int, str]],
    values: Sequence[str],
    apart: Sequence[str],
    unknown: bool = False,
    tensors: int,
    elapsed_s: float,
    file: TextIO,
) -> None:
    """Print both checkpoints (path, format), and what differs: (kind, pattern, how many tensors, what).

    ``unknown``: nothing differs in what was compared, and not all could be.
    """
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    alike = not lines and not values
    headline = f"alike in {plural(tensors, 'tensor')}" if alike else "not alike"
    names = tuple(
        Row(f"{one_line(path)} ({called})", mark=mark)
        for mark, (path, called) in zip("AB", (first, second), strict=True)
    )
    sections = [Section("of", names)]
    for kind, label in _LABELS.items():
        rows = [_row(pattern, number, text) for known, pattern, number, text in lines if known == kind]
        sections.append(Section(label, _cut(rows)))
    sections.append(Section("values", _cut([Row(one_line(text)) for text in values])))
    sections.append(Section("not compared", _cut([Row(one_line(text)) for text in apart])))
    symbol, tone = ("✓", "fine") if alike else ("✗", "error")
    if unknown:
        symbol, tone, headline = "?", "unknown", "not known to be alike"
    shown = tuple(section for section in sections if section.rows)
    draw(Document(symbol, f"{headline} (compared in {duration(elapsed_s)})", tone, shown), file, None)


def _row(pattern: str, number: int, text: str) -> Row:
    return Row(f"{one_line(pattern)}: {one_line(text)}", aside=plural(number, "tensor") if number > 1 else "")


def _cut(rows: Sequence[Row]) -> tuple[Row, ...]:
    if len(rows) <= SHOWN + 1:
        return tuple(rows)
    return (*rows[:SHOWN], Row(f"… and {len(rows) - SHOWN:,} more", style="aside"))
