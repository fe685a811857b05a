"""Lays a document out with rich: framed and coloured on a terminal, plain everywhere else, and written at once."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.report.document import Document, Row, Section
from holdfast.report.text import encodable, visible

WIDEST = 120
NARROWEST = 40
LABEL_COLUMNS = 12
MARK_COLUMNS = 24

TONES = {"error": "red", "warning": "yellow", "unknown": "magenta", "note": "blue", "fine": "green", "plain": "none"}
STYLES = {"plain": "", "strong": "bold", "aside": "dim", "command": "bold green", "path": "underline"}
LABELS = {"remedy": "bold green", "decision": "bold cyan", "report": "bold cyan"}


class _Landmarks(RegexHighlighter):
    """Makes what the eye looks for stand out: ranks, places in the source code, numbered collectives."""

    base_style = ""
    highlights = (
        r"(?P<bold>\branks? \d[\d,\-…]*)",
        r"(?P<cyan>[^\s()]+\.py:\d+)",
        r"(?P<magenta>\b[a-z_]+ #\d+)",
    )


def draw_lines(lines: Iterable[Sequence[tuple[str, str]]], file: TextIO) -> None:
    """Write lines of (text, style) on a terminal, each whole however wide; without colours where none are wanted."""
    target = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True, legacy_windows=False)
    fancy = not target.no_color and target.color_system is not None
    encoding = getattr(file, "encoding", None) or "utf-8"
    for line in lines:
        text = Text.assemble(*((encodable(part, encoding), style if fancy else "") for part, style in line))
        target.print(text)


def draw(document: Document, file: TextIO, width: int | None = None) -> None:
    """Write ``document`` on ``file`` in one write; colour and encoding follow what ``file`` is."""
    target = Console(file=file)
    # NO_COLOR asks for no escape codes at all; rich itself would still write bold ones.
    fancy = target.is_terminal and not target.no_color and target.color_system is not None
    console = Console(
        file=io.StringIO(),
        force_terminal=fancy,
        color_system=target.color_system if fancy else None,  # type: ignore[arg-type]  # a name that rich gave us
        no_color=not fancy,
        width=max(NARROWEST, min(width or target.width, WIDEST)),
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    _lay_out(document, console, fancy=fancy)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # the StringIO of five lines above
    blank = "\n" if document.sections and not document.framed else ""
    text = "\n".join(line.rstrip() for line in lines) + "\n" + blank
    file.write(encodable(text, getattr(file, "encoding", None) or "utf-8"))
    file.flush()


def _lay_out(document: Document, console: Console, *, fancy: bool) -> None:
    colour = TONES[document.tone]
    headline = _headline(document, f"bold {colour}" if colour != "none" else "bold")
    if fancy and document.framed:
        console.print(Panel(headline, border_style=colour, padding=(0, 1), title="holdfast", title_align="right"))
    else:
        console.print(headline)
    if document.sections and document.framed:
        console.print()
    for section in document.sections:
        _section(section, console)


def _headline(document: Document, style: str) -> Table:
    """The sentence hangs beside its symbol, so that its second line does not look like a new one."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    headline = Text(visible(document.headline), style=style)
    if document.symbol:
        grid.add_row(Text(document.symbol, style=style), headline)
    else:
        grid.add_row(headline)
    return grid


def _section(section: Section, console: Console) -> None:
    marks = min(MARK_COLUMNS, max(len(visible(row.mark)) for row in section.rows))
    for index, row in enumerate(section.rows):
        label = section.label if index == 0 else ""
        if row.style in {"command", "path"}:
            _unbroken(row, label, marks, console)
        else:
            console.print(_grid(row, label, marks))


def _grid(row: Row, label: str, marks: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=LABEL_COLUMNS, justify="right")
    cells = [Text(label, style=LABELS.get(label, "dim"))]
    if marks:
        grid.add_column(width=marks)
        cells.append(Text(visible(row.mark), style="bold"))
    grid.add_column(overflow="fold")
    grid.add_row(*cells, _content(row))
    return grid


def _content(row: Row) -> Text:
    text = _marked(row.text, STYLES[row.style])
    for piece, style in row.pieces:
        text.append(visible(piece), style=style)
    if row.aside:
        text.append(f" ({visible(row.aside)})", style="dim")
    return text


def _unbroken(row: Row, label: str, marks: int, console: Console) -> None:
    """A line that whoever copies it gets whole, however narrow the terminal."""
    text = Text(label.rjust(LABEL_COLUMNS), style=LABELS.get(label, "dim"))
    text.append("  " + " " * (marks + 2 if marks else 0))
    if row.style == "command":
        text.append("$ ", style="dim")
    text.append(visible(row.text).replace("\n", " "), style=STYLES[row.style])
    console.print(text, soft_wrap=True)


def _marked(text: str, style: str) -> Text:
    styled = Text(visible(text), style=style)
    _Landmarks().highlight(styled)
    return styled
