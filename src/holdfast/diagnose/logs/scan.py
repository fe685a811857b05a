"""Find the lines of a log that match a table of patterns: one pass, constant memory.

A stream is read in blocks of whole lines, which ``search_engines.py`` searches. To bound memory,
lines longer than ``MAX_LINE_BYTES`` are cut into pieces that are searched separately; each hit has
the line's number and the piece's offset. Cuts are made after a carriage return if there is one
(updates of a progress bar are one line), and after a run of NUL bytes (a truncated log begins with
one).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from holdfast.diagnose.evidence.streams import ReadableStream
from holdfast.diagnose.logs.search_engines import (
    BlockSearch,
    SearchPattern,
    compile_with_hyperscan,
    compile_with_re,
)

CHUNK_BYTES = 1 << 19
#: Longer lines are cut.
MAX_LINE_BYTES = 1 << 16
#: Bytes searched with ``re`` before a table that is not stored is compiled for Hyperscan, which
#: takes as long.
SMALL_BYTES = 1 << 17

#: All matches of sparse rows are reported in this much of a stream's start and end.
FIRST_BYTES = 1 << 18
LAST_BYTES = 1 << 20
#: After each HALVED_EVERY lines with sparse rows only, FIRST_BYTES and LAST_BYTES are halved for
#: the following streams, down to LEAST_BYTES: a folder may have 100,000 logs.
HALVED_EVERY = 5_000
LEAST_BYTES = 1 << 6
#: After this many, a shorter stream's sparse rows are reported on its last line only, and on lines
#: with other rows.
MANY_SPARSE, SHORT_BYTES = 20_000, 1 << 14

#: Lines after a followed row that are hits: enough for a traceback interleaved with other ranks'.
MAX_FOLLOWING = 64


class ScanHit(msgspec.Struct, frozen=True, gc=False):
    """A matching line: its number from 1, its offset in bytes, and the matching rows."""

    number: int
    offset: int
    line: bytes
    rows: tuple[int, ...]


class Scanner:
    """Searches streams, one at a time, for ``patterns``.

    ``sparse`` names rows that match nearly every line of a healthy log, such as step numbers. All
    their matches are reported in the first FIRST_BYTES and the last LAST_BYTES of a stream, rounded
    up to whole lines, and between them only the first in each block of at most CHUNK_BYTES; those
    of ``frequent`` ones, which match nearly every line, only if it is near the block's beginning.

    ``followed`` names rows after which the next ``MAX_FOLLOWING`` lines are hits too, even without
    rows.
    """

    def __init__(
        self,
        patterns: Sequence[SearchPattern],
        *,
        sparse: Collection[str] = (),
        frequent: Collection[str] = (),
        followed: Collection[str] = (),
    ) -> None:
        self._sparse = frozenset(row for row, (name, *_) in enumerate(patterns) if name in sparse)
        self._followed = frozenset(
            row for row, (name, *_) in enumerate(patterns) if name in followed
        )
        often = frozenset(row for row in self._sparse if patterns[row][0] in frequent)
        self.following = 0
        self._sparse_hits = 0
        self._all = _PatternTable(patterns, self._sparse)
        self._sparse_once = _PatternTable(patterns, self._sparse, often, once=True)
        self._sparse_last = _PatternTable(patterns, self._sparse, last=True)
        self._searched_bytes = 0
        self.lines = self.bytes = self.line_feeds = 0
        self.last: tuple[int, bytes] | None = None

    def scan(self, stream: ReadableStream, *, following: int = 0) -> Iterator[ScanHit]:
        """Return the hits in ``stream`` in order.

        ``following`` is the number of first lines that are hits because of lines scanned before;
        the attribute ``following`` is that number for the lines after this stream. ``lines``,
        ``line_feeds``, ``bytes`` and ``last`` (number and bytes of the last line, or piece, that is
        not blank) describe this stream once it is exhausted.
        """
        return self._scan(self._plan(_blocks(stream)), following)

    def scan_small(self, data: bytes) -> Iterator[ScanHit]:
        """Return the hits in a stream of at most MAX_LINE_BYTES that ends with a line feed."""
        is_short = self._sparse_hits >= MANY_SPARSE and len(data) < SHORT_BYTES
        return self._scan(
            ((data, self._sparse_last),) if is_short else self._plan(iter((data,))), 0
        )

    def _scan(
        self, plan: Iterable[tuple[bytes, _PatternTable]], following: int
    ) -> Iterator[ScanHit]:
        self.lines = self.bytes = self.line_feeds = 0
        self.last, self.following = None, following
        final, block = (0, b""), b"\n"
        for block, table in plan:
            before = self.line_feeds
            yield from self._search(table, block)
            if not block.isspace():
                final = (before, block)
            self.bytes += len(block)
        self.lines = self.line_feeds + (not block.endswith(b"\n"))
        self.last = _last_line(*final)

    def _search(self, table: _PatternTable, block: bytes) -> Iterator[ScanHit]:
        self._searched_bytes += len(block)
        newlines, at = self.line_feeds, 0
        search = table.stored_search
        if search is None:
            is_small = self._searched_bytes <= SMALL_BYTES
            search = table.slow_search if is_small else table.fast_search
        for begin, end, found in search(block):
            if self.following:
                yield from self._followers(block, at, begin, newlines)
            newlines += block.count(b"\n", at, begin)
            self._sparse_hits += self._sparse.issuperset(found)
            self.following = (
                max(self.following - 1, 0) if self._followed.isdisjoint(found) else MAX_FOLLOWING
            )
            yield ScanHit(newlines + 1, self.bytes + begin, block[begin:end], found)
            newlines += block.count(b"\n", begin, end)
            at = end
        if self.following:
            yield from self._followers(block, at, len(block), newlines)
        self.line_feeds = newlines + block.count(b"\n", at)

    def _followers(self, block: bytes, begin: int, end: int, newlines: int) -> Iterator[ScanHit]:
        """Yield the lines without rows in [begin, end) that follow a followed row."""
        while self.following and begin < end:
            until = block.find(b"\n", begin, end) + 1 or end
            newlines += 1
            self.following -= 1
            yield ScanHit(newlines, self.bytes + begin, block[begin:until], ())
            begin = until

    def _plan(self, blocks: Iterator[bytes]) -> Iterator[tuple[bytes, _PatternTable]]:
        """Yield each block with its table; blocks are held back to recognize the stream's end."""
        if not self._sparse:
            yield from ((block, self._all) for block in blocks)
            return
        halved = min(self._sparse_hits // HALVED_EVERY, LAST_BYTES.bit_length())
        first, last = FIRST_BYTES >> halved, max(LAST_BYTES >> halved, min(LAST_BYTES, LEAST_BYTES))
        held: deque[bytes] = deque()
        held_bytes = at = 0
        if self._sparse_hits >= MANY_SPARSE:
            held.extend(islice(blocks, 2))
            held_bytes = sum(map(len, held))
            if len(held) == 1 and held_bytes < SHORT_BYTES:
                yield held[0], self._sparse_last
                return
        for one in blocks:
            held.append(one)
            held_bytes += len(one)
            while held_bytes - len(held[0]) >= last:
                block = held.popleft()
                yield from self._split(block, first - at, 0)
                held_bytes -= len(block)
                at += len(block)
        for block in held:
            yield from self._split(block, first - at, last - held_bytes + len(block))
            held_bytes -= len(block)
            at += len(block)

    def _split(self, block: bytes, head: int, tail: int) -> Iterator[tuple[bytes, _PatternTable]]:
        """Yield parts; of the first ``head`` and last ``tail`` bytes, all matches are reported."""
        until = (block.find(b"\n", head - 1) + 1 or len(block)) if head > 0 else 0
        begin = block.rfind(b"\n", 0, max(len(block) - tail, 0)) + 1 if tail > 0 else len(block)
        if until >= begin:
            yield block, self._all
            return
        if until:
            yield block[:until], self._all
        yield block[until:begin], self._sparse_once
        if begin < len(block):
            yield block[begin:], self._all


@dataclass
class _PatternTable:
    """Patterns, and the sparse ones.

    ``once``: only the first match in a block counts of these, of ``frequent`` ones only if it is
    near the block's beginning; ``last``: only those on the last line and on lines with others.
    """

    patterns: Sequence[SearchPattern]
    sparse: frozenset[int]
    frequent: frozenset[int] = frozenset()
    once: bool = False
    last: bool = False

    @cached_property
    def slow_search(self) -> BlockSearch:
        """The search that compiles quickly."""
        return compile_with_re(
            self.patterns, self._once, accompanying=self._accompanying, frequent=self.frequent
        )

    @cached_property
    def fast_search(self) -> BlockSearch:
        """The fastest search available."""
        return self._with_hyperscan(only_stored=False) or self.slow_search

    @cached_property
    def stored_search(self) -> BlockSearch | None:
        """The fastest search if it is ready."""
        return self._with_hyperscan(only_stored=True)

    def _with_hyperscan(self, *, only_stored: bool) -> BlockSearch | None:
        return compile_with_hyperscan(
            self.patterns,
            self._once,
            self.sparse,
            accompanying=self._accompanying,
            frequent=self.frequent,
            only_stored=only_stored,
        )

    @property
    def _once(self) -> Collection[int]:
        return self.sparse if self.once else ()

    @property
    def _accompanying(self) -> Collection[int]:
        return self.sparse if self.last else ()


def _last_line(newlines: int, block: bytes) -> tuple[int, bytes] | None:
    """Return number and bytes of the last non-blank line; ``newlines`` precede the block."""
    text = block.rstrip()
    if not text:
        return None
    begin = text.rfind(b"\n") + 1
    end = block.find(b"\n", len(text)) + 1 or len(block)
    return newlines + block.count(b"\n", 0, begin) + 1, block[begin:end]


def _blocks(stream: ReadableStream) -> Iterator[bytes]:
    """Yield whole lines, or pieces of long lines; the cuts do not depend on the chunks."""
    rest = b""
    while chunk := _read_chunk(stream):
        data = rest + chunk
        begin = 0
        for end in _block_ends(data):
            yield data[begin:end]
            begin = end
        rest = data[begin:]
    if rest:
        yield rest


def _block_ends(data: bytes) -> Iterator[int]:
    """Yield where blocks end in ``data``; the bytes after the last end are incomplete."""
    begin = at = 0
    whole = data.rfind(b"\n") + 1
    while len(data) - at > MAX_LINE_BYTES:
        newline = data.rfind(b"\n", at, at + MAX_LINE_BYTES)
        if newline >= 0:
            at = newline + 1
            continue
        if begin < at:
            yield at
        begin = at = _cut_line(data, at)
        yield at
    if begin < whole:
        yield whole


def _cut_line(data: bytes, begin: int) -> int:
    """Return where to cut the too long line that begins at ``begin``."""
    window = data[begin : begin + MAX_LINE_BYTES]
    nuls = len(window) - len(window.lstrip(b"\0"))
    return begin + (nuls or window.rfind(b"\r") + 1 or len(window))


def _read_chunk(stream: ReadableStream) -> bytes:
    """Return up to CHUNK_BYTES, less than half only at the end: pipes return short reads."""
    parts, size = [], 0
    while size < (CHUNK_BYTES + 1) // 2 and (part := stream.read(CHUNK_BYTES - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
