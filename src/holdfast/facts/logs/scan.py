"""Finds the lines of a log in which one of many expressions stands: one pass, constant memory.

A stream is read in blocks of whole lines, which ``engines.py`` searches. What bounds the memory bounds what is found,
too: a line longer than ``MOST_LINE_BYTES`` is cut into pieces that are searched one by one, each a hit of its own with
the line's number and the piece's offset. It is cut behind a carriage return where there is one (the pictures of a
progress bar are one line), and behind a run of NUL bytes, which is what a truncated log begins with. Text in UTF-16 or
UTF-32 that begins with a byte-order mark is searched as UTF-8, and lengths and offsets are then those of the UTF-8.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from holdfast.facts.evidence.streams import Readable
from holdfast.facts.logs.engines import Pattern, Search, by_hyperscan, by_re

CHUNK_BYTES = 1 << 18
#: A line that never ends is cut here.
MOST_LINE_BYTES = 1 << 16
#: So much is searched with ``re`` before Hyperscan is asked to compile the table, which takes as long.
SMALL_BYTES = 1 << 17

#: Rows that are heard too often are searched in so much of a stream's start and end, and between in one block of
#: about SAMPLE_BYTES every SAMPLE_EVERY_BYTES.
FIRST_BYTES = 1 << 18
LAST_BYTES = 2 << 20
SAMPLE_BYTES = 1 << 14
SAMPLE_EVERY_BYTES = 8 << 20
#: With every so many lines in which nothing but such rows stood, what is searched for them at a stream's start and end
#: is halved for the streams that follow, down to the last LEAST_BYTES: a folder may hold a hundred thousand logs.
HALVED_EVERY = 5_000
LEAST_BYTES = 1 << 6

#: UTF-32 first: its mark begins as that of UTF-16 does.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Hit:
    """A line with something in it: its number from 1, where it begins (bytes), and the rows that were found."""

    number: int
    offset: int
    line: bytes
    rows: tuple[int, ...]


class Scanner:
    """Looks for ``patterns``, each a name, an expression, and whether case is ignored.

    ``sparse`` names rows that stand in nearly every line of a healthy log, such as a step's number. They are searched
    in full in the first FIRST_BYTES and the last LAST_BYTES of a stream, and between those only in the first
    SAMPLE_BYTES of a block every SAMPLE_EVERY_BYTES, all rounded up to whole lines; in later streams of many, less
    (HALVED_EVERY). All other rows are searched everywhere; a line found for one of them may lack its sparse rows.
    Nothing is sparse unless it is named. One scanner scans one stream at a time.
    """

    def __init__(self, patterns: Sequence[Pattern], *, sparse: Collection[str] = ()) -> None:
        quiet = [row for row, (name, *_) in enumerate(patterns) if name not in sparse]
        self._sparse = frozenset(range(len(patterns))) - frozenset(quiet)
        self._idle_hits = 0
        self._all = _Table(patterns, range(len(patterns)))
        self._quiet = _Table([patterns[row] for row in quiet], quiet) if len(quiet) < len(patterns) else None
        self._searched = 0
        self.lines = self.bytes = 0
        self.last: tuple[int, bytes] | None = None

    def scan(self, stream: Readable) -> Iterator[Hit]:
        """The hits in ``stream``, in order.

        ``lines``, ``bytes`` and ``last`` (number and bytes of the last line that is not blank, or of its last piece)
        are of this stream, and complete when it is at its end.
        """
        self.lines = self.bytes = 0
        self.last = None
        newlines, final, block = 0, (0, b""), b"\n"
        for block, table in self._planned(_blocks(_chunks(stream))):
            yield from self._hits(table, block, newlines)
            if not block.isspace():
                final = (newlines, block)
            newlines += block.count(b"\n")
            self.bytes += len(block)
        self.lines = newlines + (not block.endswith(b"\n"))
        self.last = _last(*final)

    def _hits(self, table: _Table, block: bytes, newlines: int) -> Iterator[Hit]:
        self._searched += len(block)
        counted = 0
        for begin, end, rows in table.search(fast=self._searched > SMALL_BYTES)(block):
            newlines += block.count(b"\n", counted, begin)
            counted = begin
            found = tuple(table.rows[row] for row in rows)
            self._idle_hits += self._sparse.issuperset(found)
            yield Hit(newlines + 1, self.bytes + begin, block[begin:end], found)

    def _planned(self, blocks: Iterator[bytes]) -> Iterator[tuple[bytes, _Table]]:
        """Each block with what to search it for; the stream's end is known when as much is held back."""
        if self._quiet is None:
            yield from ((block, self._all) for block in blocks)
            return
        halved = min(self._idle_hits // HALVED_EVERY, LAST_BYTES.bit_length())
        first, last = FIRST_BYTES >> halved, max(LAST_BYTES >> halved, min(LAST_BYTES, LEAST_BYTES))
        held: deque[bytes] = deque()
        held_bytes = at = sampled = 0
        for one in blocks:
            held.append(one)
            held_bytes += len(one)
            while held_bytes - len(held[0]) >= last:
                block = held.popleft()
                head = first - at
                if at - sampled >= SAMPLE_EVERY_BYTES:
                    sampled, head = at, SAMPLE_BYTES
                yield from self._parts(block, head, 0)
                held_bytes -= len(block)
                at += len(block)
        for block in held:
            yield from self._parts(block, first - at, last - held_bytes + len(block))
            held_bytes -= len(block)
            at += len(block)

    def _parts(self, block: bytes, head: int, tail: int) -> Iterator[tuple[bytes, _Table]]:
        """The first ``head`` and the last ``tail`` bytes, rounded up to whole lines, are searched for everything."""
        assert self._quiet is not None  # noqa: S101 - asked for by the only caller
        until = (block.find(b"\n", head - 1) + 1 or len(block)) if head > 0 else 0
        begin = block.rfind(b"\n", 0, max(len(block) - tail, 0)) + 1 if tail > 0 else len(block)
        if until >= begin:
            yield block, self._all
            return
        if until:
            yield block[:until], self._all
        yield block[until:begin], self._quiet
        if begin < len(block):
            yield block[begin:], self._all


class _Table:
    """Patterns, the rows that they have in the scanner's own table, and the engines that search for them."""

    def __init__(self, patterns: Sequence[Pattern], rows: Sequence[int]) -> None:
        self._patterns = tuple(patterns)
        self.rows = rows
        self._slow: Search | None = None
        self._fast: Search | None = None

    def search(self, *, fast: bool) -> Search:
        """The engine: ``fast`` is worth the time that compiling takes."""
        if fast:
            self._fast = self._fast or by_hyperscan(self._patterns) or by_re(self._patterns)
            return self._fast
        self._slow = self._slow or by_re(self._patterns)
        return self._slow


def _last(newlines: int, block: bytes) -> tuple[int, bytes] | None:
    """Number and bytes of the last line of ``block`` that is not blank; ``newlines`` are before the block."""
    text = block.rstrip()
    if not text:
        return None
    begin = text.rfind(b"\n") + 1
    end = block.find(b"\n", len(text)) + 1 or len(block)
    return newlines + block.count(b"\n", 0, begin) + 1, block[begin:end]


def _blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines; of a line that is too long, every piece is a block. Its cuts do not depend on the chunks."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        begin = 0
        for end in _ends(data):
            yield data[begin:end]
            begin = end
        rest = data[begin:]
    if rest:
        yield rest


def _ends(data: bytes) -> Iterator[int]:
    """Where the blocks end in ``data``, which begins with a line or a piece; what is behind the last one must wait."""
    begin = at = 0
    whole = data.rfind(b"\n") + 1
    while len(data) - at > MOST_LINE_BYTES:
        newline = data.rfind(b"\n", at, at + MOST_LINE_BYTES)
        if newline >= 0:
            at = newline + 1
            continue
        if begin < at:
            yield at
        begin = at = _cut(data, at)
        yield at
    if begin < whole:
        yield whole


def _cut(data: bytes, begin: int) -> int:
    """Where the first piece of the line ends that begins at ``begin`` and is too long."""
    window = data[begin : begin + MOST_LINE_BYTES]
    nuls = len(window) - len(window.lstrip(b"\0"))
    return begin + (nuls or window.rfind(b"\r") + 1 or len(window))


def _chunks(stream: Readable) -> Iterator[bytes]:
    """What is in ``stream``, as UTF-8 where a mark says that it is in a wider encoding."""
    chunk = _filled(stream)
    encoding = next((name for mark, name in _MARKS if chunk.startswith(mark)), None)
    if encoding is None:
        while chunk:
            yield chunk
            chunk = _filled(stream)
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while chunk:
        yield decoder.decode(chunk).encode()
        chunk = _filled(stream)
    yield decoder.decode(b"", final=True).encode()


def _filled(stream: Readable) -> bytes:
    """The next CHUNK_BYTES, less only at the end: pipes and archives give what they have just now."""
    chunk = stream.read(CHUNK_BYTES)
    if not chunk or len(chunk) == CHUNK_BYTES:
        return chunk or b""
    parts, size = [chunk], len(chunk)
    while size < CHUNK_BYTES and (chunk := stream.read(CHUNK_BYTES - size)):
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)
