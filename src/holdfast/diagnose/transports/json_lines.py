"""One JSON record per line: Docker, journald, Logstash, Loki, and JSON formatters of loggers.

A record may have a prefix (Fluentd's time and tag, kubectl's pod); other lines pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from holdfast.diagnose.transports import MAX_HELD_BYTES, CarriedLine, FirstLines, TransportDecoder
from holdfast.diagnose.transports.records import message_of, origin_of

#: A record, and what precedes it.
_RECORD = re.compile(rb'([^{"]{0,160}?)(\{\s*".*\})\s*$', re.DOTALL)
#: Docker cuts longer lines into records of this size; only the last ends with a line feed.
_DOCKER_CUT_BYTES = 1 << 14
#: Records within records.
MAX_NESTED = 3


def recognize_json_lines(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log with a line that is a record."""
    if b"{" not in first.data or not any(one in first.data for one in (b'{"', b'{ "')):
        return None
    return JsonRecords if any(parse_record(one) is not None for one in first.contents) else None


def parse_record(content: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Return the prefix and the record of a line; None if the line has no record with a message."""
    found = _RECORD.match(content) if b"{" in content else None
    if found is None:
        return None
    try:
        record = msgspec.json.decode(found[2])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(record, dict) or message_of(record) is None:
        return None
    return found[1], record


class JsonRecords:
    """Replaces records by their messages."""

    def __init__(self) -> None:
        self._cut = b""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the lines of the record's message, each with the record's prefix."""
        found = parse_record(line.content)
        if found is None:
            return (line,)
        return self._record_lines(line, *found)

    def _record_lines(
        self, line: CarriedLine, prefix: bytes, record: dict[str, Any]
    ) -> Iterator[CarriedLine]:
        message = (message_of(record) or "").encode(errors="replace")
        is_cut = len(message) >= _DOCKER_CUT_BYTES and "stream" in record and message[-1:] != b"\n"
        message, self._cut = self._cut + message, b""
        if is_cut and len(message) < MAX_HELD_BYTES:
            self._cut = message
            return
        yield from record_lines(line, record, message, prefix)

    def flush(self) -> Iterable[CarriedLine]:
        """Return nothing: a cut line without its end is not evidence."""
        return ()


def record_lines(
    line: CarriedLine,
    record: dict[str, Any],
    message: bytes,
    prefix: bytes = b"",
    *,
    nested: int = MAX_NESTED,
) -> Iterator[CarriedLine]:
    """Yield the lines of ``message``, with the origin that the record states.

    A line may be a record itself: Docker's records contain what a JSON logger printed.
    """
    origin = origin_of(record)
    for text in message.splitlines() or [b""]:
        inner = line.from_record(prefix + text, origin)
        found = parse_record(text) if nested and text[:1] == b"{" else None
        if found is None:
            yield inner
        else:
            inner_message = (message_of(found[1]) or "").encode(errors="replace")
            yield from record_lines(inner, found[1], inner_message, prefix, nested=nested - 1)
