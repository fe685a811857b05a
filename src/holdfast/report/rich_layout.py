"""Lay out a report document with rich: framed and coloured on a terminal, plain elsewhere.

Only ``sheet.py`` imports this module.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.causes.translations import Translate, translator
from holdfast.core.text import encodable, escape_invisible
from holdfast.report.document import ReportDocument, ReportRow, ReportSection

MAX_COLUMNS = 120
MIN_COLUMNS = 40
LABEL_COLUMNS = 12
MARK_COLUMNS = 24

TONES = {
    "error": "red",
    "warning": "yellow",
    "unknown": "magenta",
    "note": "blue",
    "fine": "green",
    "plain": "none",
}
STYLES = {
    "plain": "",
    "strong": "bold",
    "aside": "dim",
    "command": "bold green",
    "path": "underline",
}
LABELS = {"remedy": "bold green", "action": "bold cyan", "report": "bold cyan"}


class _ReferenceHighlighter(RegexHighlighter):
    """Highlights ranks, source lines and numbered collectives."""

    base_style = ""
    highlights = (
        r"(?P<bold>\branks? \d[\d,\-…]*)",
        r"(?P<cyan>[^\s()]+\.py:\d+)",
        r"(?P<magenta>\b[a-z_]+ #\d+)",
    )


def draw_lines(lines: Iterable[Sequence[tuple[str, str]]], file: TextIO) -> None:
    """Write lines of (text, style); see ``sheet.draw_lines``."""
    target = Console(
        file=file, highlight=False, markup=False, emoji=False, soft_wrap=True, legacy_windows=False
    )
    styled = not target.no_color and target.color_system is not None
    encoding = getattr(file, "encoding", None) or "utf-8"
    translate = translator(encoding)
    for line in lines:
        text = Text.assemble(
            *(
                (encodable(translate(part), encoding), style if styled else "")
                for part, style in line
            )
        )
        target.print(text)


def draw_document(document: ReportDocument, file: TextIO, width: int | None = None) -> None:
    """Write ``document``; see ``sheet.draw_document``."""
    target = Console(file=file)
    # NO_COLOR disables all escape codes; rich itself would still write bold text.
    styled = target.is_terminal and not target.no_color and target.color_system is not None
    console = Console(
        file=io.StringIO(),
        force_terminal=styled,
        color_system=target.color_system if styled else None,  # type: ignore[arg-type]
        no_color=not styled,
        width=max(MIN_COLUMNS, min(width or target.width, MAX_COLUMNS)),
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    encoding = getattr(file, "encoding", None) or "utf-8"
    _print_document(document, console, translator(encoding), styled=styled)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # the StringIO above
    blank = "\n" if document.sections and not document.framed else ""
    text = "\n".join(line.rstrip() for line in lines) + "\n" + blank
    file.write(encodable(text, encoding))
    file.flush()


def _print_document(
    document: ReportDocument, console: Console, translate: Translate, *, styled: bool
) -> None:
    colour = TONES[document.tone]
    style = f"bold {colour}" if colour != "none" else "bold"
    headline = _headline_grid(document.symbol, translate(document.headline), style)
    if styled and document.framed:
        console.print(
            Panel(
                headline, border_style=colour, padding=(0, 1), title="holdfast", title_align="right"
            )
        )
    else:
        console.print(headline)
    if document.sections and document.framed:
        console.print()
    for section in document.sections:
        _print_section(section, console, translate)


def _headline_grid(symbol: str, headline: str, style: str) -> Table:
    """Return symbol and sentence side by side, so that wrapped lines are indented."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    cells = [symbol] if symbol else []
    grid.add_row(*(Text(text, style=style) for text in (*cells, escape_invisible(headline))))
    return grid


def _print_section(section: ReportSection, console: Console, translate: Translate) -> None:
    marks = min(MARK_COLUMNS, max(cell_len(escape_invisible(row.mark)) for row in section.rows))
    first = Text(translate(section.label), style=LABELS.get(section.label, "dim"))
    for index, row in enumerate(section.rows):
        label = Text() if index else first
        if row.style in {"command", "path"}:
            _print_unwrapped(row, label, marks, console)
        else:
            console.print(_row_grid(row, label, marks, translate))


def _row_grid(row: ReportRow, label: Text, marks: int, translate: Translate) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=LABEL_COLUMNS, justify="right")
    cells = [label]
    if marks:
        grid.add_column(width=marks)
        cells.append(Text(escape_invisible(row.mark), style="bold"))
    grid.add_column(overflow="fold")
    grid.add_row(*cells, _row_text(row, translate))
    return grid


def _row_text(row: ReportRow, translate: Translate) -> Text:
    text = _highlighted(translate(row.text), STYLES[row.style])
    for piece, style in row.pieces:
        text.append(escape_invisible(piece), style=style)
    if row.aside:
        text.append(f" ({escape_invisible(translate(row.aside))})", style="dim")
    return text


def _print_unwrapped(row: ReportRow, label: Text, marks: int, console: Console) -> None:
    """Print a command or path without wrapping, so that it can be copied."""
    text = Text(" " * (LABEL_COLUMNS - label.cell_len)).append_text(label)
    text.append("  " + " " * (marks + 2 if marks else 0))
    if row.style == "command":
        text.append("$ ", style="dim")
    text.append(escape_invisible(row.text).replace("\n", " "), style=STYLES[row.style])
    console.print(text, soft_wrap=True)


def _highlighted(text: str, style: str) -> Text:
    styled = Text(escape_invisible(text), style=style)
    _ReferenceHighlighter().highlight(styled)
    return styled
