"""Lines in the format of the container runtime interface: containerd's and CRI-O's files.

``2026-03-01T00:00:00.123456789Z stderr F message``; ``P`` in place of ``F`` means that the next
record of the stream continues the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from holdfast.diagnose.transports import (
    MAX_HELD_BYTES,
    CarriedLine,
    FirstLines,
    RecordOrigin,
    TransportDecoder,
)
from holdfast.diagnose.transports.records import parse_time

_RECORD = re.compile(
    rb"(\d{4}-\d\d-\d\dT\S{8,40}) (stdout|stderr) ([FP])(?::\S{0,20})? ?([^\r\n]*)"
)


def recognize_container_lines(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log whose lines have a time, a stream and a tag."""
    if b" std" not in first.data[:256] or first.share(_RECORD.match) < 0.5:
        return None
    return ContainerLines


class ContainerLines:
    """Removes the prefix, and joins partial lines of one stream."""

    def __init__(self) -> None:
        self._partial: dict[bytes, bytes] = {}
        self._last = CarriedLine(0, b"")

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the line if the record is not partial."""
        found = _RECORD.match(line.text)
        if found is None:
            return (line,)
        stream, tag = found[2], found[3]
        text = self._partial.pop(stream, b"") + found[4]
        self._last = line
        if tag == b"P" and len(text) < MAX_HELD_BYTES:
            self._partial[stream] = text
            return ()
        return (line.from_record(text, RecordOrigin(time=parse_time(found[1].decode()))),)

    def flush(self) -> Iterable[CarriedLine]:
        """Return the partial lines."""
        rest = [self._last.with_text(text) for text in self._partial.values()]
        self._partial.clear()
        return rest
