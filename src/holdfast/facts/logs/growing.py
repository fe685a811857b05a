"""Logs that are read again and again while they grow: of each, what was added since it was read last.

A log that was truncated, rotated or written anew is told by its inode, its size, and the bytes in front of the place up
to which it was read; it is read from its beginning, and what it said before is forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from holdfast.facts.evidence import Piece
from holdfast.facts.evidence.gather import open_at_once
from holdfast.facts.evidence.streams import FAULTS, Readable, Slice, Stretch, reason
from holdfast.facts.logs import LogFacts
from holdfast.facts.logs.kept import merge
from holdfast.facts.logs.reader import Reader, new_scanner
from holdfast.facts.logs.scan import MOST_LINE_BYTES

_SEAL_BYTES = 256


class GrowingLogs:
    """Remembers how far each log was read. ``waits`` is true where a line was not finished when it was read last."""

    def __init__(self) -> None:
        self._scanner = new_scanner()
        self._processes: dict[str, int] = {}
        self._logs: dict[str, _Log] = {}
        self.waits = False

    def read(self, pieces: Iterable[Piece]) -> LogFacts:
        """What the logs among ``pieces`` say by now; those that are no more among them are forgotten."""
        before, self._logs = self._logs, {}
        for piece in pieces:
            log = before.get(piece.name)
            try:
                if log is None or not log.read_on(piece):
                    log = _Log(Reader(self._scanner, self._processes))
                    log.read_anew(piece)
            except FAULTS as fault:
                piece.troubles.append(reason(fault))
                log = log and log.given_up()
            if log is not None:
                self._logs[piece.name] = log
        self.waits = any(log.waits for log in self._logs.values())
        return merge(log.facts for log in self._logs.values())


class _Log:
    """One log: what was read of it, and how to tell that it is still the same."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._inode = (0, 0)
        self._seal = b""
        self._at = self._size = self._lines = 0
        self.facts = LogFacts()
        self.waits = False

    def read_anew(self, piece: Piece) -> None:
        """Read it from its beginning: to the end of its last whole line, where more may come; else all of it."""
        if not piece.path:
            with piece.open() as stream:
                self._take(piece.name, stream)
            return
        with open_at_once(piece.path) as file, piece.open() as stream:
            status = os.fstat(file.fileno())
            self._inode = (status.st_dev, status.st_ino)
            self._take_until(_last_line_end(file, 0, status.st_size), status.st_size, piece.name, file, stream)

    def read_on(self, piece: Piece) -> bool:
        """Read what was added; False where this is not the log any more that was read."""
        if not piece.path:
            return False
        with open_at_once(piece.path) as file:
            status = os.fstat(file.fileno())
            begin, size = self._at, status.st_size
            if self._inode != (status.st_dev, status.st_ino) or size < begin or _seal(file, begin) != self._seal:
                return False
            rests = size == self._size  # what has no end by now is taken as a line
            end = size if rests else _last_line_end(file, begin, size)
            self._take_until(end, size, piece.name, file, Slice(file, begin, end - begin))
        return True

    def given_up(self) -> _Log:
        """Reading failed on the way: what was read counts for now, and the next look reads it anew."""
        self._inode, self.facts = (0, 0), self._reader.facts()
        return self

    def _take_until(self, end: int, size: int, name: str, file: BinaryIO, stream: Readable) -> None:
        if end > self._at:
            self._take(name, Stretch(stream, end - self._at))
        self._at, self._size, self.waits = end, size, end < size
        self._seal = _seal(file, end)

    def _take(self, name: str, stream: Readable) -> None:
        self._lines += self._reader.add(name, stream, after_lines=self._lines)
        self.facts = self._reader.facts()


def _seal(file: BinaryIO, end: int) -> bytes:
    """The last bytes before ``end``."""
    size = min(end, _SEAL_BYTES)
    return os.pread(file.fileno(), size, end - size)


def _last_line_end(file: BinaryIO, begin: int, end: int) -> int:
    """Where the last whole line between ``begin`` and ``end`` ends; ``end`` where the last is too long to wait for."""
    size = min(end - begin, MOST_LINE_BYTES)
    found = os.pread(file.fileno(), size, end - size).rfind(b"\n") + 1
    return end if not found and size == MOST_LINE_BYTES else end - size + found
