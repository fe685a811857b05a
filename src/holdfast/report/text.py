# ruff: noqa: RUF001 - the typographic characters are meant
"""Text that may come from anywhere, made fit to be shown: nothing in it can move the cursor or hide a character."""

from __future__ import annotations

import math

#: Symbols of the reports, and what stands for each where the encoding lacks it: one character for one, so that
#: columns stay aligned.
ASCII_TWINS = str.maketrans(
    {
        "✗": "x", "✓": "+", "⚠": "!", "•": "*", "·": "-", "—": "-", "–": "-", "−": "-", "…": "~", "→": ">", "└": "`",
        "×": "x", "≥": ">", "≤": "<", "µ": "u", "’": "'", "‘": "'", "“": '"', "”": '"',
        "─": "-", "━": "=", "│": "|", "┃": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "╴": "-", "╶": "-", "█": "#",
    }
)  # fmt: skip

MINUTE_S = 60
HOUR_S = 3600


def visible(text: str) -> str:
    r"""``text`` with every character that is not printable written out (``\x1b``); line breaks and tabs stay breaks.

    Escape sequences in a file's name, marks that turn the direction of writing and lone surrogates all become plain.
    """
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text.expandtabs(4).replace("\r\n", "\n"))


def _shown(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return " " if character.isspace() and ord(character) > 0x1F else character.encode("unicode_escape").decode("ascii")


def one_line(text: str) -> str:
    """``text`` made visible, on one line."""
    return " ".join(visible(text).split())


def encodable(text: str, encoding: str) -> str:
    r"""``text`` as ``encoding`` can write it: symbols become their ASCII twins, other characters ``\u1234``.

    An encoding that Python does not know counts as ASCII.
    """
    try:
        text.encode(encoding)
    except UnicodeError:
        return text.translate(ASCII_TWINS).encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.translate(ASCII_TWINS).encode("ascii", "backslashreplace").decode("ascii")
    return text


def duration(seconds: float) -> str:
    """A length of time for people, at most four digits: ``12 ms``, ``6.1 s``, ``4 min 10 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    size = abs(seconds)
    sign = "−" if seconds < 0 else ""
    if size < 1e-3:
        return f"{sign}{size * 1e6:.0f} µs"
    if size < 1:
        return f"{sign}{size * 1e3:.0f} ms"
    if size < MINUTE_S:
        return f"{sign}{size:.2f} s" if size < 3 else f"{sign}{size:.1f} s"
    if size < HOUR_S:
        return f"{sign}{int(size) // MINUTE_S} min {int(size) % MINUTE_S:02d} s"
    return f"{sign}{int(size) // HOUR_S} h {int(size) % HOUR_S // MINUTE_S:02d} min"


def percent(share: float) -> str:
    """A confidence for people: ``93 %``; never 100 % unless it is exactly 1."""
    return f"{min(99, round(share * 100)) if share < 1 else 100} %"


def plural(number: int, noun: str) -> str:
    """``1 rank``, ``1,021 ranks``, ``2 boxes``."""
    ending = "" if number == 1 else "es" if noun.endswith(("x", "s", "ch", "sh")) else "s"
    return f"{number:,} {noun}{ending}"
