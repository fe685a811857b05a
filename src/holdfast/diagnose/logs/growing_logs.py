"""Read growing logs incrementally.

Truncation, rotation and rewriting are detected by inode, size, and the bytes before the position
up to which the log was read. Such a log is read again from the beginning, and its earlier facts are
dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from holdfast.diagnose.evidence import EvidenceFile
from holdfast.diagnose.evidence.gather import open_nonblocking
from holdfast.diagnose.evidence.streams import (
    READ_ERRORS,
    BoundedStream,
    FileSlice,
    ReadableStream,
    describe_read_error,
)
from holdfast.diagnose.logs import LogFacts
from holdfast.diagnose.logs.bounded_signals import merge_facts
from holdfast.diagnose.logs.reader import LogReader, create_scanner
from holdfast.diagnose.logs.scan import MAX_LINE_BYTES

#: Bytes before the position that are compared to detect rewriting.
_SEAL_BYTES = 256


class GrowingLogs:
    """Logs with the positions up to which they were read.

    ``has_partial_line``: the last line of a log was incomplete when it was last read.
    """

    def __init__(self) -> None:
        self._scanner = create_scanner()
        self._rank_by_process: dict[str, int] = {}
        self._logs: dict[str, _GrowingLog] = {}
        self.has_partial_line = False

    def read(self, files: Iterable[EvidenceFile]) -> LogFacts:
        """Return the facts in ``files`` so far; logs that are not among them are dropped."""
        before, self._logs = self._logs, {}
        for file in files:
            log = before.get(file.name)
            try:
                if log is None or not log.read_added(file):
                    log = _GrowingLog(LogReader(self._scanner, self._rank_by_process))
                    log.read_whole(file)
            except READ_ERRORS as error:
                file.read_errors.append(describe_read_error(error))
                if log is not None:
                    log.abandon()
            if log is not None:
                self._logs[file.name] = log
        self.has_partial_line = any(log.has_partial_line for log in self._logs.values())
        return merge_facts(log.facts for log in self._logs.values())


class _GrowingLog:
    """One log: its facts, the position in it, and how to recognize that it is the same file."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._inode = (0, 0)
        self._seal = b""
        self._at = self._size = self._lines = 0
        self.facts = LogFacts()
        self.has_partial_line = False

    def read_whole(self, file: EvidenceFile) -> None:
        """Read from the beginning: to the end of the last complete line if the log can grow."""
        if not file.path:
            with file.open() as stream:
                self._read(file.name, stream)
            return
        with open_nonblocking(file.path) as raw, file.open() as stream:
            status = os.fstat(raw.fileno())
            self._inode = (status.st_dev, status.st_ino)
            end = _last_line_end(raw, 0, status.st_size)
            self._read_until(end, status.st_size, file.name, raw, stream)

    def read_added(self, file: EvidenceFile) -> bool:
        """Read what was added; return False if the file must be read from the beginning.

        It is another file, or what was added shows the form of the lines before it.
        """
        if not file.path:
            return False
        was_decoding = self._reader.is_decoding
        with open_nonblocking(file.path) as raw:
            status = os.fstat(raw.fileno())
            begin, size = self._at, status.st_size
            if (
                self._inode != (status.st_dev, status.st_ino)
                or size < begin
                or _seal(raw, begin) != self._seal
            ):
                return False
            # A partial line that stopped growing counts as a line.
            end = size if size == self._size else _last_line_end(raw, begin, size)
            self._read_until(end, size, file.name, raw, FileSlice(raw, begin, end - begin))
        return self._reader.is_decoding == was_decoding

    def abandon(self) -> None:
        """Keep the facts read before an error; the next read starts from the beginning."""
        self._inode, self.facts = (0, 0), self._reader.facts()

    def _read_until(
        self, end: int, size: int, name: str, raw: BinaryIO, stream: ReadableStream
    ) -> None:
        if end > self._at:
            self._read(name, BoundedStream(stream, end - self._at))
        self._at, self._size, self.has_partial_line = end, size, end < size
        self._seal = _seal(raw, end)

    def _read(self, name: str, stream: ReadableStream) -> None:
        self._lines += self._reader.add(name, stream, after_lines=self._lines)
        self.facts = self._reader.facts()


def _seal(file: BinaryIO, end: int) -> bytes:
    """Return the last bytes before ``end``."""
    size = min(end, _SEAL_BYTES)
    return os.pread(file.fileno(), size, end - size)


def _last_line_end(file: BinaryIO, begin: int, end: int) -> int:
    """Return where the last complete line in [begin, end) ends; ``end`` if the last is too long."""
    size = min(end - begin, MAX_LINE_BYTES)
    length = os.pread(file.fileno(), size, end - size).rfind(b"\n") + 1
    return end if not length and size == MAX_LINE_BYTES else end - size + length
