"""Tables that web consoles export: CloudWatch, Grafana (Loki), Datadog, Splunk."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from holdfast.diagnose.transports import MAX_HELD_BYTES, CarriedLine, FirstLines, TransportDecoder
from holdfast.diagnose.transports.records import message_of, origin_of

_DELIMITERS = (",", "\t", ";")
#: Names of columns in lower case -> the key of a record that ``records.py`` reads.
_COLUMNS = {
    "message": "message", "msg": "message", "line": "message", "log": "message",
    "content": "message", "textpayload": "message", "jsonpayload.message": "message",
    "body": "message", "_raw": "message", "raw": "message", "event.original": "message",
    "timestamp": "time", "time": "time", "date": "time", "_time": "time", "tsns": "time",
    "host": "host", "hostname": "host", "pod": "host", "instance": "host", "node": "host",
    "logstream": "host", "logstreamname": "host", "rank": "rank",
}  # fmt: skip
#: What a header contains that names a column of messages.
_NAMES_OF_MESSAGE = tuple(name for name, key in _COLUMNS.items() if key == "message")


def recognize_table(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log whose first line names a column of messages, and others."""
    return recognize_header(first.contents[0]) if len(first.contents) > 1 else None


def recognize_header(line: bytes) -> Callable[[], TransportDecoder] | None:
    """Return what makes the decoder of the table with this header; None if it is no header."""
    header = line.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    lowered = header.lower()
    if not any(name in lowered for name in _NAMES_OF_MESSAGE) or header.count('"') % 2:
        return None  # without a column of messages, or with a quote that never ends
    for delimiter in _DELIMITERS:
        if delimiter in header:
            columns = [_key_of(name) for name in _parse_row(header, delimiter)]
            if "message" in columns and not any("{" in name for name in columns):
                return partial(TableDecoder, delimiter, columns)
    return None


def _key_of(name: str) -> str:
    plain = name.strip().lower().removeprefix("@")
    return _COLUMNS.get(plain, plain)


class TableDecoder:
    """Replaces rows by their messages; a row has several lines if a cell has."""

    def __init__(self, delimiter: str, columns: Sequence[str]) -> None:
        self._delimiter, self._columns = delimiter, columns
        self._row = b""
        self._is_header = True

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the lines of the message if ``line`` ends a row."""
        self._row += line.text
        if self._row.count(b'"') % 2 and len(self._row) < MAX_HELD_BYTES:
            return ()
        text, self._row = self._row, b""
        if self._is_header:
            self._is_header = False
            return ()
        cells = _parse_row(text.decode(errors="replace"), self._delimiter)
        record = dict(zip(self._columns, cells, strict=False))
        message = message_of(record)
        if message is None or len(cells) < len(self._columns):
            return (line.with_text(text.rstrip(b"\r\n")),)
        origin = origin_of(record)
        lines = message.splitlines() or [""]
        return [line.from_record(one.encode(errors="replace"), origin) for one in lines]

    def flush(self) -> Iterable[CarriedLine]:
        """Return nothing: the rest of a row comes with the next bytes, or never."""
        return ()


def _parse_row(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:  # a cell of more than 128 KiB
        return []
