"""Finds the lines of a log in which one of many expressions stands: one pass, constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
#: A line that never ends is cut here.
MOST_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Hit:
    """A line with something in it: its number from 1, where it begins (bytes), and the rows that were found."""

    number: int
    offset: int
    line: bytes
    rows: tuple[int, ...]


class Scanner:
    """Looks for ``patterns``, each a name, an expression, and whether case is ignored."""

    def __init__(self, patterns: Sequence[tuple[str, str, bool]]) -> None:
        self._each = [
            re.compile(expression.encode(), re.IGNORECASE if ignore else 0) for _, expression, ignore in patterns
        ]
        self.lines = self.bytes = 0
        self.last: tuple[int, bytes] | None = None

    def scan(self, stream: BinaryIO) -> Iterator[Hit]:
        """The hits in ``stream``, in order. ``lines``, ``bytes`` and ``last`` (the last line) are of this stream."""
        self.lines = self.bytes = 0
        self.last = None
        for line in iter(lambda: stream.readline(MOST_LINE_BYTES), b""):
            self.lines += 1
            if line.strip():
                self.last = (self.lines, line)
            rows = tuple(index for index, expression in enumerate(self._each) if expression.search(line))
            if rows:
                yield Hit(self.lines, self.bytes, line, rows)
            self.bytes += len(line)
