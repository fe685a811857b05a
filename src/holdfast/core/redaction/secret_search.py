"""Find the stretches of a block that may contain a secret, with Hyperscan if it is installed.

Hyperscan searches for all expressions at once, in a relaxed form that matches everything they match
and more. On these candidates the expressions themselves are tried. A stretch consists of whole
lines, and includes the next lines as long as a line may announce a secret on the next one
(``text_blocks.announces``), like a block.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from holdfast.core.redaction.text_blocks import announces

#: Begin and end in the block, and the sorted indices of the expressions that may match.
Stretch = tuple[int, int, Sequence[int]]
Search = Callable[[bytes], Iterator[Stretch]]

#: Maximum number of lines in a row that belong together.
_MAX_LINES = 64
#: Hyperscan does not support named groups.
_GROUP_NAME = re.compile(rb"(?<!\\)\(\?P<\w+>")


def make_search(patterns: Sequence[re.Pattern[bytes]]) -> Search:
    """Return a search for these expressions; without Hyperscan it returns the whole block."""
    return make_hyperscan_search(tuple(patterns)) or (
        lambda block: iter([(0, len(block), range(len(patterns)))])
    )


def make_hyperscan_search(patterns: tuple[re.Pattern[bytes], ...]) -> Search | None:
    """Return a search with Hyperscan; None if it is not installed or rejects an expression."""
    database = _compiled_database(patterns)
    if database is None:
        return None
    scratch = importlib.import_module("hyperscan").Scratch(database)

    def search(block: bytes) -> Iterator[Stretch]:
        matched = _MatchedLines(block, len(patterns))
        database.scan(block, match_event_handler=matched.add, scratch=scratch)
        yield from matched.stretches()

    return search


class _MatchedLines:
    """Lines in which a match ends; Hyperscan calls ``add`` for every match."""

    def __init__(self, block: bytes, rows: int) -> None:
        self._block = block
        self._until = [0] * rows
        self._lines: dict[int, tuple[int, set[int]]] = {}

    def add(self, row: int, _begin: int, end: int, _flags: int, _context: object) -> None:
        """Add a match of expression ``row`` that ends at ``end``; one per line is sufficient."""
        if end <= self._until[row]:
            return
        begin = self._block.rfind(b"\n", 0, end - 1) + 1
        self._until[row] = self._block.find(b"\n", end - 1) + 1 or len(self._block)
        self._lines.setdefault(begin, (self._until[row], set()))[1].add(row)

    def stretches(self) -> Iterator[Stretch]:
        """Yield the lines with all lines that belong to them; adjacent stretches are joined."""
        open_until, begun, rows = 0, 0, set[int]()
        for begin, (end, found) in sorted(self._lines.items()):
            first = self._stretch_begin(begin, open_until)
            if rows and first >= open_until:
                yield begun, open_until, sorted(rows)
                rows = set()
            if not rows:
                begun = first
            rows |= found
            open_until = max(open_until, self._stretch_end(end))
        if rows:
            yield begun, open_until, sorted(rows)

    def _stretch_begin(self, begin: int, least: int) -> int:
        """Return the begin of the stretch whose line begins at ``begin``."""
        for _ in range(_MAX_LINES):
            before = self._block.rfind(b"\n", 0, max(begin - 1, 0)) + 1
            if begin <= least or not announces(self._block[before : begin - 1]):
                break
            begin = before
        return begin

    def _stretch_end(self, end: int) -> int:
        """Return the end of the stretch whose line ends at ``end``."""
        begin = self._block.rfind(b"\n", 0, end - 1) + 1
        for _ in range(_MAX_LINES):
            if end >= len(self._block) or not announces(self._block[begin:end]):
                break
            begin, end = end, self._block.find(b"\n", end) + 1 or len(self._block)
        return end


@lru_cache(maxsize=4)
def _compiled_database(patterns: tuple[re.Pattern[bytes], ...]) -> Any:
    """Compile the expressions, which takes 0.3 s, once per process."""
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
            ids=list(range(len(patterns))),
            elements=len(patterns),
            flags=flags,
        )
    except hyperscan.HyperscanError:  # an unsupported processor or expression
        return None
    return database
