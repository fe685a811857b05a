"""A report for the terminal before it is laid out: a headline and labelled sections of rows, all plain text."""

from __future__ import annotations

from typing import Literal

import msgspec

Style = Literal["plain", "strong", "aside", "command", "path"]


class Row(msgspec.Struct, frozen=True):
    """One entry of a section: ``mark`` hangs to its left (a number, a set of ranks), ``aside`` follows in brackets.

    Commands and paths are never wrapped, so that they can be copied. ``pieces``, (text, style) with rich's styles, are
    for bars and what stands beside them: they come after the text.
    """

    text: str
    mark: str = ""
    aside: str = ""
    style: Style = "plain"
    pieces: tuple[tuple[str, str], ...] = ()


class Section(msgspec.Struct, frozen=True):
    """Rows under one label."""

    label: str
    rows: tuple[Row, ...]


class Document(msgspec.Struct, frozen=True):
    """A symbol, the headline, its tone (a level, ``fine`` or ``plain``), and the sections.

    ``framed`` puts the headline into a frame where there is a terminal.
    """

    symbol: str
    headline: str
    tone: str
    sections: tuple[Section, ...] = ()
    framed: bool = True
