"""A conversion for the terminal: what was written, what was compared, and what the target cannot hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from holdfast.report.document import Document, Row, Section
from holdfast.report.evidence import size_text
from holdfast.report.text import duration, one_line, plural

#: Lines of one kind that are printed; the JSON has all of them.
SHOWN = 8


def render_converted(  # noqa: PLR0913 - each by its name
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
    """Print both (path, format), how much was written and compared, what is not in the target, and what was seen."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    rate = f", {size_text(size / elapsed_s)}/s" if elapsed_s > 1 else ""
    sections = (
        Section("from", (Row(f"{one_line(source[0])} ({source[1]})"),)),
        Section("to", (Row(f"{one_line(target[0])} ({target[1]})"),)),
        Section("written", tuple(Row(one_line(each)) for each in written)),
        Section("read back", (Row(one_line(compared)),)),
        Section("not in it", _cut(losses)),
        Section("notes", _cut(notes)),
    )
    headline = f"converted in {duration(elapsed_s)} ({size_text(size)}{rate})"
    symbol, tone = ("✓", "fine") if not losses else ("!", "warning")
    draw(Document(symbol, headline, tone, tuple(section for section in sections if section.rows)), file, None)


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def counted(tensors: int, states: int) -> str:
    """So many tensors of the model, and of the optimizer."""
    more = f" and {plural(states, 'tensor')} of the optimizer" if states else ""
    return f"{plural(tensors, 'tensor')} of the model{more}"


def _cut(lines: Sequence[str]) -> tuple[Row, ...]:
    rows = [Row(one_line(each)) for each in lines[:SHOWN]]
    if len(lines) > SHOWN:
        rows.append(Row(f"… and {len(lines) - SHOWN:,} more", style="aside"))
    return tuple(rows)
