"""Finds the stretches of a block in which a secret may stand: with Hyperscan where it is there, else the whole block.

Hyperscan looks for all expressions at once, in a form that it can serve and that matches whatever they match and more.
It so names candidates, on which the expressions themselves are tried. A stretch is made of whole lines and reaches as
far as one line may announce a secret on the next (``text_blocks.announces``): nothing that belongs together is torn
apart, just as at the end of a block.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from holdfast.actions.text_blocks import announces

#: Where a stretch begins and ends in its block, and which expressions may match in it, in order.
Stretch = tuple[int, int, Sequence[int]]
Search = Callable[[bytes], Iterator[Stretch]]

#: So many lines in a row may belong together.
_MOST_LINES = 64
#: Hyperscan has groups without names alone, and is told of case by a flag.
_GROUP_NAME = re.compile(rb"(?<!\\)\(\?P<\w+>")


def searcher(patterns: Sequence[re.Pattern[bytes]]) -> Search:
    """A search for these expressions."""
    return by_hyperscan(tuple(patterns)) or (lambda block: iter([(0, len(block), range(len(patterns)))]))


def by_hyperscan(patterns: tuple[re.Pattern[bytes], ...]) -> Search | None:
    """A search with Hyperscan; None where it is not installed, or does not know one of the expressions."""
    database = _database(patterns)
    if database is None:
        return None
    scratch = importlib.import_module("hyperscan").Scratch(database)

    def search(block: bytes) -> Iterator[Stretch]:
        candidates = _Candidates(block, len(patterns))
        database.scan(block, match_event_handler=candidates.add, scratch=scratch)
        yield from candidates.stretches()

    return search


class _Candidates:
    """Lines in which a match ends; ``add`` is called for every match."""

    def __init__(self, block: bytes, rows: int) -> None:
        self._block = block
        self._until = [0] * rows
        self._lines: dict[int, tuple[int, set[int]]] = {}

    def add(self, row: int, _begin: int, end: int, _flags: int, _context: object) -> None:
        """``row`` has a match that ends at ``end``; of several in a line, one is enough."""
        if end <= self._until[row]:
            return
        begin = self._block.rfind(b"\n", 0, end - 1) + 1
        self._until[row] = self._block.find(b"\n", end - 1) + 1 or len(self._block)
        self._lines.setdefault(begin, (self._until[row], set()))[1].add(row)

    def stretches(self) -> Iterator[Stretch]:
        """Lines with all that may belong to them; those that touch become one."""
        open_until, begun, rows = 0, 0, set[int]()
        for begin, (end, found) in sorted(self._lines.items()):
            first = self._first(begin, open_until)
            if rows and first >= open_until:
                yield begun, open_until, sorted(rows)
                rows = set()
            if not rows:
                begun = first
            rows |= found
            open_until = max(open_until, self._last(end))
        if rows:
            yield begun, open_until, sorted(rows)

    def _first(self, begin: int, least: int) -> int:
        """Where the stretch of the line that begins at ``begin`` begins."""
        for _ in range(_MOST_LINES):
            before = self._block.rfind(b"\n", 0, max(begin - 1, 0)) + 1
            if begin <= least or not announces(self._block[before : begin - 1]):
                break
            begin = before
        return begin

    def _last(self, end: int) -> int:
        """Where the stretch of the line that ends at ``end`` ends."""
        begin = self._block.rfind(b"\n", 0, end - 1) + 1
        for _ in range(_MOST_LINES):
            if end >= len(self._block) or not announces(self._block[begin:end]):
                break
            begin, end = end, self._block.find(b"\n", end) + 1 or len(self._block)
        return end


@lru_cache(maxsize=4)
def _database(patterns: tuple[re.Pattern[bytes], ...]) -> Any:
    """Compiled once in a process: a third of a second."""
    try:
        hyperscan = importlib.import_module("hyperscan")
    except ImportError:
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = [
        hyperscan.HS_FLAG_PREFILTER
        | hyperscan.HS_FLAG_MULTILINE
        | (hyperscan.HS_FLAG_CASELESS if pattern.flags & re.IGNORECASE else 0)
        for pattern in patterns
    ]
    try:
        database.compile(
            expressions=[_GROUP_NAME.sub(b"(?:", pattern.pattern) for pattern in patterns],
            ids=list(range(len(patterns))), elements=len(patterns), flags=flags,
        )  # fmt: skip
    except hyperscan.HyperscanError:  # a processor or an expression that it cannot serve
        return None
    return database
