"""Make untrusted text safe to print, and format durations, percentages and counts."""

from __future__ import annotations

import math

#: Symbols of the reports and their ASCII replacements, one character for one, so that columns stay
#: aligned.
ASCII_TWINS = str.maketrans(
    "✗✓⚠•·—–−…→└×≥≤µ’‘─━│┃╭╮╰╯╴╶█“”",  # noqa: RUF001
    "x+!*----~>`x><u''-=||++++--#\"\"",
)

MINUTE_S = 60
HOUR_S = 3600


def os_error_reason(error: OSError) -> str:
    """Return why an operation failed, in lower case: ``no such file or directory``."""
    return (error.strerror or str(error)).lower()


def escape_invisible(text: str) -> str:
    r"""Return ``text`` with unprintable characters escaped (``\x1b``).

    Line breaks and tabs are kept.

    Covers terminal escape sequences, bidirectional marks and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        _escape_character(character) for character in text.expandtabs(4).replace("\r\n", "\n")
    )


def _escape_character(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    return (
        " "
        if character.isspace() and ord(character) > 0x1F
        else character.encode("unicode_escape").decode("ascii")
    )


def one_line(text: str) -> str:
    """Return ``text`` with unprintable characters escaped, on one line."""
    return " ".join(escape_invisible(text).split())


def shorten(text: str, length: int) -> str:
    """Return ``text`` with at most ``length`` characters, cut between words and marked with ``…``.

    A long last word is cut, too.
    """
    if len(text) <= length:
        return text
    words = text[:length].rpartition(" ")[0]
    return f"{(words if len(words) > length // 2 else text[: length - 1]).rstrip(' ,;:')}…"


def encodable(text: str, encoding: str) -> str:
    r"""Return ``text`` limited to ``encoding``: symbols become ASCII, other characters ``\u1234``.

    An unknown encoding counts as ASCII.
    """
    try:
        text.encode(encoding)
    except UnicodeError:
        return text.translate(ASCII_TWINS).encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.translate(ASCII_TWINS).encode("ascii", "backslashreplace").decode("ascii")
    return text


def format_duration(seconds: float) -> str:
    """Format a duration with at most four digits.

    ``12 ms``, ``6.1 s``, ``4 min 10 s``, ``2 h 05 min``.
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    size = abs(seconds)
    sign = "−" if seconds < 0 else ""  # noqa: RUF001
    if size < 1e-3:
        return f"{sign}{size * 1e6:.0f} µs"
    if size < 1:
        return f"{sign}{size * 1e3:.0f} ms"
    if size < MINUTE_S:
        return f"{sign}{size:.2f} s" if size < 3 else f"{sign}{size:.1f} s"
    if size < HOUR_S:
        return f"{sign}{int(size) // MINUTE_S} min {int(size) % MINUTE_S:02d} s"
    return f"{sign}{int(size) // HOUR_S} h {int(size) % HOUR_S // MINUTE_S:02d} min"


def format_precise_duration(seconds: float) -> str:
    """Format a duration with three significant digits, for benchmarks.

    ``1,620 µs``, ``12.3 ms``.
    """
    if seconds < 10e-3:
        return f"{1e6 * seconds:,.0f} µs" if seconds >= 100e-6 else f"{1e6 * seconds:.3g} µs"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.3g} s"


def format_percent(share: float) -> str:
    """Format a fraction as a percentage: ``93%``; 100% only if it is exactly 1."""
    return f"{min(99, round(share * 100)) if share < 1 else 100}%"


def pluralize(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 rank``, ``1,021 ranks``, ``2 boxes``."""
    ending = "" if number == 1 else "es" if noun.endswith(("x", "s", "ch", "sh")) else "s"
    return f"{number:,} {noun}{ending}"
