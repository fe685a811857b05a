"""A terminal report before layout: a headline and labelled sections of rows, all plain text."""

from __future__ import annotations

from typing import Literal

import msgspec

Style = Literal["plain", "strong", "aside", "command", "path"]


class ReportRow(msgspec.Struct, frozen=True):
    """One entry: ``mark`` is to its left (a number, a set of ranks), ``aside`` follows in brackets.

    Commands and paths are never wrapped, so that they can be copied. ``pieces`` are (text, style)
    pairs with rich's styles for bars; they follow the text.
    """

    text: str
    mark: str = ""
    aside: str = ""
    style: Style = "plain"
    pieces: tuple[tuple[str, str], ...] = ()


class ReportSection(msgspec.Struct, frozen=True):
    """Rows under one label."""

    label: str
    rows: tuple[ReportRow, ...]


class ReportDocument(msgspec.Struct, frozen=True):
    """A symbol, the headline, its tone (a level, ``fine`` or ``plain``), and the sections.

    ``framed`` draws a frame around the headline on a terminal.
    """

    symbol: str
    headline: str
    tone: str
    sections: tuple[ReportSection, ...] = ()
    framed: bool = True
