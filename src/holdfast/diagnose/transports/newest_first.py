"""Exports of web consoles that list the newest line first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from holdfast.diagnose.transports import CarriedLine, FirstLines, TransportDecoder

#: More is not reversed: consoles export at most some ten thousand lines.
MAX_REVERSED_BYTES = 16 << 20


def recognize_newest_first(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log whose transport states times that only decrease."""
    times = first.times
    if len(times) < 2 or len(times) < len(first.contents) or times[-1] >= times[0]:
        return None
    return NewestFirst if all(one >= other for one, other in pairwise(times)) else None


class NewestFirst:
    """Holds the whole log, and reverses its records; their lines stay in order."""

    def __init__(self) -> None:
        self._records: list[list[CarriedLine]] = []
        self._bytes = 0

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return nothing, or all that is held if it is too much."""
        if self._records and self._records[-1][0].number == line.number:
            self._records[-1].append(line)
        else:
            self._records.append([line])
        self._bytes += len(line.text)
        return self.flush() if self._bytes > MAX_REVERSED_BYTES else ()

    def flush(self) -> Iterable[CarriedLine]:
        """Return all lines, the oldest first."""
        lines = [line for record in reversed(self._records) for line in record]
        self._records, self._bytes = [], 0
        return lines
