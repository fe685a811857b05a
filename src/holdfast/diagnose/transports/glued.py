r"""Logs whose line feeds were lost: replaced by spaces or nothing, or written as ``\n``.

Such a line is split where a line of a log begins: at a rank, a time, a traceback and its frames, an
exception, and the rows of a launcher's table of failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from holdfast.diagnose.transports import CarriedLine, FirstLines, TransportDecoder

#: Shorter lines are not split.
_MIN_GLUED_BYTES = 400
_MIN_BEGINNINGS = 3
#: Lines between literal line feeds are this long on average; parts of a Windows path are shorter.
_MIN_LINE_BYTES = 16
_BEGINNING = re.compile(
    rb"(?=\[(?:rank|default)\d{1,6}\]:|[WEIF]\d{4} \d\d:\d\d:\d\d\.|\[\s{0,6}\d{1,9}\.\d{6}\] "
    rb"|torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError)"
    rb"|(?<![\[\w(:])(?=\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
    rb"|(?<!\]: )(?<!\]:)(?=Traceback \(most recent call last\):)"
    rb"|(?=Root Cause \(first observed failure\):)"
    rb"|(?<![ \t])(?<!\]:)(?=[ \t]+File \"[^\"\n]{1,400}\", line \d)"
    rb"|(?<=[ )\]}\^'\"])(?<!: )"
    rb"(?=(?:(?:[a-z_]\w*\.){1,6}[A-Z]\w{0,60}|[A-Z]\w{0,60}(?:Error|Exception|Interrupt))(?:: |$))"
    rb"|(?=[ \t]+(?:time|host|rank|exitcode|error_file|traceback) {1,8}: )"
    rb"|(?<=[^=])(?=={20,})|(?<==)(?=[^=\s][^=]*$)"
)
_LITERAL = re.compile(rb"(?<!\\)(?:\\r)?\\n")
_LITERAL_QUOTE = re.compile(rb"\\(['\"])")
#: In a line with this, a traceback was printed by its ``repr``.
ESCAPED_TRACEBACK = b"Traceback (most recent call last):\\n"


def recognize_glued_lines(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log of long lines, in each of which several lines begin."""
    if max(first.lengths, default=0) < _MIN_GLUED_BYTES:
        return None
    long = [one for one in first.contents if len(one) >= _MIN_GLUED_BYTES]
    if 2 * sum(map(len, long)) < len(first.data):
        return None
    return GluedLines if any(map(_is_glued, long)) else None


def recognize_literal_line_feeds(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    r"""Claim a log of lines that have ``\n`` in place of line feeds."""
    if b"\\" not in first.data or b"\\n" not in first.data:
        return None
    several = [one for one in first.contents if _has_literal_line_feeds(one)]
    return LiteralLineFeeds if 2 * sum(map(len, several)) >= len(first.data) else None


def _has_literal_line_feeds(content: bytes) -> bool:
    count = content.count(b"\\n")
    return count >= _MIN_BEGINNINGS and len(content) >= _MIN_LINE_BYTES * count


def _is_glued(content: bytes) -> bool:
    found = 0
    for match in _BEGINNING.finditer(content):
        found += match.start() > 0
        if found >= _MIN_BEGINNINGS:
            return True
    return False


class GluedLines:
    """Splits long lines where a line begins."""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the lines in ``line``."""
        content = line.content
        if len(content) < _MIN_GLUED_BYTES or not _is_glued(content):
            return (line,)
        return [line.with_text(part) for part in _BEGINNING.split(content) if part and part.strip()]

    def flush(self) -> Iterable[CarriedLine]:
        """Return nothing."""
        return ()


class LiteralLineFeeds:
    r"""Splits lines at ``\n``, as Python's ``repr`` and JSON write line feeds."""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the lines in ``line``."""
        content = line.content
        if not _has_literal_line_feeds(content) and ESCAPED_TRACEBACK not in content:
            return (line,)
        parts = _LITERAL.split(content)
        return [line.with_text(_LITERAL_QUOTE.sub(rb"\1", part)) for part in parts]

    def flush(self) -> Iterable[CarriedLine]:
        """Return nothing."""
        return ()
