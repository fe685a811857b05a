"""Records in one JSON document: an array, the answer of an API, or records over several lines.

The text is read as a stream: an object in an array or at the top is decoded when it ends. If it is
a record, the objects around it only contain records, and are not decoded. Text that is not JSON
ends the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.diagnose.transports import MAX_HELD_BYTES, CarriedLine, FirstLines, TransportDecoder
from holdfast.diagnose.transports.json_lines import parse_record, record_lines
from holdfast.diagnose.transports.records import message_of

#: Strings as a whole, brackets, and a string that is not complete yet.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]|"', re.DOTALL)
#: Numbers, constants and separators.
_BETWEEN = re.compile(rb"[\s,:\d.+eE-]*(?:(?:true|false|null|NaN|-?Infinity)[\s,:\d.+eE-]*)*")
_BEGIN = re.compile(rb"\s*(?:\{\s*(?:\"|$)|\[\s*(?:[{\"\[]|$))")


def recognize_json_document(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log that is one document, or whose records have several lines."""
    if not first.contents or not _BEGIN.match(first.contents[0]):
        return None
    if parse_record(first.contents[0]) is not None and len(first.contents) > 1:
        return None  # one record per line
    decoder = JsonDocument()
    for line in first.lines:
        decoder.feed(line)
        if decoder.has_records:
            return JsonDocument
    return None  # metrics or settings that a program prints


@dataclass
class _OpenBracket:
    """A bracket that was not closed yet.

    ``begin`` is the offset of an object that may be a record, -1 for arrays and for objects that
    contain records.
    """

    is_object: bool
    begin: int = -1


class JsonDocument:
    """Replaces a document by the messages of its records; other text passes unchanged."""

    def __init__(self) -> None:
        self._text = b""
        self._at = 0
        self._open: list[_OpenBracket] = []
        self._last = CarriedLine(0, b"")
        self._is_broken = False
        self.has_records = False

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the messages of the records that end in ``line``."""
        if not self._open and not _BEGIN.match(line.text):
            return (line,)
        self._text += line.text
        self._last = line
        lines = list(self._read_tokens(line))
        if not self._is_broken:
            self._drop_text()
        if self._is_broken or len(self._text) > MAX_HELD_BYTES:
            lines += self.flush()
            self._text, self._at, self._is_broken = b"", 0, False
            self._open.clear()
        return lines

    def flush(self) -> Iterable[CarriedLine]:
        """Return the text of a record that is not complete; the record may become complete."""
        lines = self._text.splitlines()
        return [self._last.with_text(text) for text in lines if text.strip(b" \t,]}")]

    def _read_tokens(self, line: CarriedLine) -> Iterator[CarriedLine]:
        for token in _TOKEN.finditer(self._text, self._at):
            text = token[0]
            if not _BETWEEN.fullmatch(self._text, self._at, token.start()):
                break
            if text == b'"':
                self._at = token.start()
                return
            self._at = token.end()
            if text == b"{":
                self._open.append(_OpenBracket(is_object=True, begin=token.start()))
            elif text == b"[":
                self._open.append(_OpenBracket(is_object=False))
            elif text in b"}]":
                yield from self._close(token.end(), line)
            elif not any(one.is_object for one in self._open):
                yield from self._text_lines(text, line)
        self._is_broken = not _BETWEEN.fullmatch(self._text, self._at)
        self._at = len(self._text)

    def _close(self, end: int, line: CarriedLine) -> Iterator[CarriedLine]:
        closed = self._open.pop() if self._open else _OpenBracket(is_object=False)
        in_object = bool(self._open) and self._open[-1].is_object
        if closed.begin < 0 or in_object:
            return
        record = _decode(self._text[closed.begin : end])
        if isinstance(record, dict) and (message := message_of(record)) is not None:
            for one in self._open:
                one.begin = -1
            self.has_records = True
            yield from record_lines(line, record, message.encode(errors="replace"))

    def _text_lines(self, text: bytes, line: CarriedLine) -> Iterator[CarriedLine]:
        """Yield the lines of a string that is an element of an array of log lines."""
        content = _decode(text)
        if isinstance(content, str):
            self.has_records = True
            yield from record_lines(line, {}, content.encode(errors="replace"))

    def _drop_text(self) -> None:
        """Forget the text before the first object that may be a record."""
        keep = min((one.begin for one in self._open if one.begin >= 0), default=self._at)
        self._text, self._at = self._text[keep:], self._at - keep
        for one in self._open:
            one.begin = max(one.begin - keep, -1)


def _decode(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
