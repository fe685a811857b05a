"""Logs in mails, issues and web pages: ``>`` before every line, and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable

from holdfast.diagnose.transports import CarriedLine, FirstLines, TransportDecoder

_QUOTE = re.compile(rb"(?:> ?)+")
_MIN_QUOTED = 3
_ENTITY = re.compile(rb"&(?:quot|lt|gt|amp|apos|nbsp|#\d{1,5}|#x[0-9a-fA-F]{1,4});")
_TAG = re.compile(
    r"</?(?:html|head|body|pre|code|p|span|div|td|tr|table|tbody|b|i|font|a|li|ol|ul)\b[^<>]{0,400}>",
    re.IGNORECASE,
)
_BREAK = re.compile(r"<br ?/?>|</(?:p|div|tr|li)>", re.IGNORECASE)


def recognize_quotes(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log of which most lines are quoted."""
    count = len(first.contents)
    if 2 * first.data.count(b">") <= count or count < _MIN_QUOTED or b"\n>" not in first.data:
        return None
    return QuotedLines if first.share(_QUOTE.match) > 0.5 else None


class QuotedLines:
    """Removes the marks of quotations."""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the line without marks."""
        return (
            (line._replace(text=_QUOTE.sub(b"", line.text, count=1)),)
            if line.text[:1] == b">"
            else (line,)
        )

    def flush(self) -> Iterable[CarriedLine]:
        """Return nothing."""
        return ()


def recognize_html(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log with characters that are escaped as in HTML."""
    return HtmlLines if b"&" in first.data and _ENTITY.search(first.data) else None


class HtmlLines:
    """Removes tags, and replaces escaped characters."""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the lines between line breaks."""
        if b"<" not in line.text and b"&" not in line.text:
            return (line,)
        text = _BREAK.sub("\n", line.content.decode(errors="replace"))
        parts = html.unescape(_TAG.sub("", text)).splitlines() or [""]
        return [line.with_text(part.encode(errors="replace")) for part in parts]

    def flush(self) -> Iterable[CarriedLine]:
        """Return nothing."""
        return ()
