r"""Finds in which lines of a block which expressions stand: with Hyperscan where it is installed, else with ``re``.

Hyperscan looks for all expressions at once and tells where each match ends. That names candidates; ``re`` confirms each
on its line alone, so that both engines give the same. For that, no candidate may be missing: Hyperscan reports every
match and not only the leftmost, so a match within a line is always among them, and one that reaches over a line's end
is only a candidate too many. Expressions that it does not know (look-around, back-references) or that match the empty
text send the whole table to ``re``. ``\A`` and ``\Z`` are not to be used: blocks are searched, not lines.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

#: Name, expression, and whether case is ignored.
Pattern = tuple[str, str, bool]
#: Where a line begins and ends in its block, and the rows that stand in it, in order.
Found = tuple[int, int, tuple[int, ...]]
#: Looks through a block of whole lines.
Search = Callable[[bytes], Iterator[Found]]

#: A group's name; Hyperscan has groups without names alone.
_GROUP_NAME = re.compile(r"(?<!\\)\(\?P<\w+>")


def by_re(patterns: Sequence[Pattern]) -> Search:
    """Line by line and row by row: what is right by definition, at about a megabyte in a second for 200 rows."""
    each = tuple(enumerate(_compiled(tuple(patterns))))

    def search(block: bytes) -> Iterator[Found]:
        begin = 0
        while begin < len(block):
            end = block.find(b"\n", begin) + 1 or len(block)
            line = block[begin:end]
            rows = tuple(row for row, expression in each if expression.search(line))
            if rows:
                yield begin, end, rows
            begin = end

    return search


def by_hyperscan(patterns: Sequence[Pattern]) -> Search | None:
    """All rows at once; None where Hyperscan is not installed, or does not know one of the expressions."""
    database = _database(tuple(patterns))
    if database is None:
        return None
    scratch = importlib.import_module("hyperscan").Scratch(database)
    each = _compiled(tuple(patterns))

    def search(block: bytes) -> Iterator[Found]:
        candidates = _Candidates(block, len(each))
        database.scan(block, match_event_handler=candidates.add, scratch=scratch)
        for begin in sorted(candidates.rows):
            end = candidates.ends[begin]
            line = block[begin:end]
            rows = tuple(row for row in sorted(candidates.rows[begin]) if each[row].search(line))
            if rows:
                yield begin, end, rows

    return search


class _Candidates:
    """Lines with the rows that may stand in them; ``add`` is called for every match."""

    def __init__(self, block: bytes, rows: int) -> None:
        self._block = block
        self._begin, self._end = [0] * rows, [0] * rows
        self.rows: dict[int, set[int]] = {}
        self.ends: dict[int, int] = {}

    def add(self, row: int, _begin: int, end: int, _flags: int, _context: object) -> None:
        """``row`` has a match that ends at ``end``. Such as ``a+`` end after every letter: those are passed over."""
        if self._begin[row] < end <= self._end[row]:
            return
        begin = self._begin[row] = self._block.rfind(b"\n", 0, end - 1) + 1
        self._end[row] = self.ends[begin] = self._block.find(b"\n", end - 1) + 1 or len(self._block)
        self.rows.setdefault(begin, set()).add(row)


@lru_cache(maxsize=8)
def _compiled(patterns: tuple[Pattern, ...]) -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(expression.encode(), re.IGNORECASE if ignore else 0) for _, expression, ignore in patterns)


@lru_cache(maxsize=8)
def _database(patterns: tuple[Pattern, ...]) -> Any:
    """Compiled once in a process: a fifth of a second for 200 rows."""
    try:
        hyperscan = importlib.import_module("hyperscan")
    except ImportError:
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[_GROUP_NAME.sub("(?:", expression).encode() for _, expression, _ in patterns],
            ids=list(range(len(patterns))),
            elements=len(patterns),
            flags=[
                hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_CASELESS if ignore else 0) for *_, ignore in patterns
            ],
        )
    except hyperscan.HyperscanError:  # a processor or an expression that it cannot serve
        return None
    return database
