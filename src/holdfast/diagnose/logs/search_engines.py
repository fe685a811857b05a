r"""Find the lines of a block that match a table of patterns, with Hyperscan or ``re``.

Hyperscan, if installed, searches for all patterns at once and reports every match's end, which
yields candidate lines; ``re`` confirms each pattern on its line, so that both engines return the
same. No candidate is missed, because Hyperscan reports all matches; one that spans a line feed is
only rejected by ``re``. If a pattern is unsupported by Hyperscan (look-around, back-references) or
matches the empty string, the whole table is searched with ``re``. Patterns must not use ``\A`` or
``\Z``: blocks are searched, not lines.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from holdfast.diagnose.logs import database_cache

#: Name, expression, and whether case is ignored.
SearchPattern = tuple[str, str, bool]
#: Begin and end of a line in its block, and the matching rows of the table in order.
LineMatch = tuple[int, int, tuple[int, ...]]
#: Searches a block of whole lines.
BlockSearch = Callable[[bytes], Iterator[LineMatch]]
#: Frequent rows are searched on the lines that begin in this much of a block.
FREQUENT_BYTES = 1 << 16

#: Number of a row, Hyperscan's flags, and its expression.
_HyperscanRule = tuple[int, int, bytes]
_NumberedPatterns = tuple[tuple[int, SearchPattern], ...]
#: Smaller databases are compiled as quickly as they are loaded.
_MIN_STORED = 16

#: A group's name, which Hyperscan does not support.
_GROUP_NAME = re.compile(r"(?<!\\)\(\?P<\w+>")


def compile_with_re(
    patterns: Sequence[SearchPattern],
    once: Collection[int] = (),
    *,
    accompanying: Collection[int] = (),
    frequent: Collection[int] = (),
) -> BlockSearch:
    """Return the reference search: line by line, about 1 MB/s for 200 patterns.

    Of the rows in ``once``, only the first match in a block counts, of those in ``frequent`` only
    matches in its first FREQUENT_BYTES; those in ``accompanying`` count on lines with other rows,
    and on the last line.
    """
    compiled = dict(enumerate(_compile_all(tuple(patterns))))
    alone = frozenset(accompanying)

    def search(block: bytes) -> Iterator[LineMatch]:
        begin, left = 0, dict(compiled)
        first_end = _end_of_first(block)
        while begin < len(block):
            if begin == first_end:
                left = {row: one for row, one in left.items() if row not in frequent}
            end = block.find(b"\n", begin) + 1 or len(block)
            line = block[begin:end]
            rows = tuple(row for row, pattern in left.items() if pattern.search(line))
            if rows and (end == len(block) or not alone.issuperset(rows)):
                yield begin, end, rows
            for row in once and set(once).intersection(rows):
                left.pop(row, None)
            begin = end

    return search


def compile_with_hyperscan(
    patterns: Sequence[SearchPattern],
    once: Collection[int] = (),
    separate: Collection[int] = (),
    *,
    accompanying: Collection[int] = (),
    frequent: Collection[int] = (),
    only_stored: bool = False,
) -> BlockSearch | None:
    """Return a search for all patterns at once; None if Hyperscan is missing or rejects one.

    With ``only_stored``, also None if a database is not stored: compiling may take a second.

    Of the rows in ``once``, Hyperscan reports only the first match in a block. If that spans a line
    feed, the row has none in this block. The rows in ``separate`` get a database of their own, so
    that tables that differ in their options only share the large one; so do those in ``frequent``,
    which are some of them. The rows in ``accompanying``, all or none of ``separate``, count as in
    ``compile_with_re``.
    """
    kinds = [(row in separate) + (row in frequent) for row in range(len(patterns))]
    create = load_database if only_stored else compile_database
    databases = _create_databases(patterns, kinds, frozenset(once), create)
    if None in databases:
        return None
    scratch_of = importlib.import_module("hyperscan").Scratch
    scans = [(database, scratch_of(database)) for database in databases]
    compiled = _ConfirmingPatterns(patterns)
    of_last_line = scans.pop() if accompanying else None
    of_first = scans.pop() if frequent else None

    def search(block: bytes) -> Iterator[LineMatch]:
        candidates = _CandidateLines(block)
        for database, scratch in scans:
            database.scan(block, match_event_handler=candidates.add, scratch=scratch)
        if of_first is not None:
            database, scratch = of_first
            first = block[: _end_of_first(block)]
            database.scan(first, match_event_handler=candidates.add, scratch=scratch)
        if of_last_line is not None:
            database, scratch = of_last_line
            begin = block.rfind(b"\n", 0, -1) + 1
            candidates.begin_line(begin, len(block))
            database.scan(block[begin:], match_event_handler=candidates.add_row, scratch=scratch)
        for begin in sorted(candidates.rows):
            end = candidates.ends[begin]
            line = block[begin:end]
            rows = tuple(
                row for row in sorted(candidates.rows[begin]) if compiled[row].search(line)
            )
            if rows and accompanying and end < len(block):
                with_them = (row for row in accompanying if compiled[row].search(line))
                rows = tuple(sorted((*rows, *with_them)))
            if rows:
                yield begin, end, rows

    return search


def _create_databases(
    patterns: Sequence[SearchPattern],
    kinds: Sequence[int],
    once: frozenset[int],
    create: Callable[[_NumberedPatterns, frozenset[int], int], Any],
) -> list[Any]:
    """Return a database for the patterns of each kind that there is; None for a missing one."""
    groups = [[row for row, kind in enumerate(kinds) if kind == one] for one in range(3)]
    return [
        create(tuple((row, patterns[row]) for row in group), once.intersection(group), kind)
        for kind, group in enumerate(groups)
        if group
    ]


def _end_of_first(block: bytes) -> int:
    """Return where the lines end that begin in the first FREQUENT_BYTES."""
    return block.find(b"\n", FREQUENT_BYTES - 1) + 1 or len(block)


class _CandidateLines:
    """Lines with the rows that may match them; ``add`` is Hyperscan's callback.

    ``add_row`` is that for a search of one line only, which ``begin_line`` names before.
    """

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._last: dict[int, tuple[int, int]] = {}
        self._of_line = set[int]()
        self.rows: dict[int, set[int]] = {}
        self.ends: dict[int, int] = {}

    def add(self, row: int, _begin: int, end: int, _flags: int, _context: object) -> None:
        """Add a match of ``row`` that ends at ``end``; ``a+`` has one for every letter."""
        begin, line_end = self._last.get(row, (0, 0))
        if begin < end <= line_end:
            return
        begin = self._block.rfind(b"\n", 0, end - 1) + 1
        self.ends[begin] = line_end = self._block.find(b"\n", end - 1) + 1 or len(self._block)
        self._last[row] = begin, line_end
        self.rows.setdefault(begin, set()).add(row)

    def begin_line(self, begin: int, end: int) -> None:
        """Let ``add_row`` add matches in the line [begin, end)."""
        self.ends[begin] = end
        self._of_line = self.rows.setdefault(begin, set())

    def add_row(self, row: int, *_: object) -> None:
        """Add a match of ``row``."""
        self._of_line.add(row)


@lru_cache(maxsize=8)
def _compile_all(patterns: tuple[SearchPattern, ...]) -> tuple[re.Pattern[bytes], ...]:
    return tuple(map(_compile_pattern, patterns))


def _compile_pattern(pattern: SearchPattern) -> re.Pattern[bytes]:
    _, expression, ignore = pattern
    return re.compile(expression.encode(), re.IGNORECASE if ignore else 0)


class _ConfirmingPatterns(dict[int, re.Pattern[bytes]]):
    """The rows by number, each compiled when it is needed first: most never are."""

    def __init__(self, patterns: Sequence[SearchPattern]) -> None:
        super().__init__()
        self._patterns = patterns

    def __missing__(self, row: int) -> re.Pattern[bytes]:
        """Compile a row."""
        self[row] = compiled = _compile_pattern(self._patterns[row])
        return compiled


@lru_cache(maxsize=8)
def compile_database(rows: _NumberedPatterns, once: frozenset[int], group: int) -> Any:
    """Return the Hyperscan database of a group of rows, stored from now on; None if unsupported."""
    database = load_database(rows, once, group)
    hyperscan = _import_hyperscan()
    if database is None and hyperscan is not None:
        rules = _rules(rows, once)
        with suppress(hyperscan.HyperscanError):  # unsupported processor or pattern
            database = _compile_rules(rules)
            database_cache.store(*_name_and_key(rules, group), hyperscan.dumpb(database))
    return database


@lru_cache(maxsize=8)
def load_database(rows: _NumberedPatterns, once: frozenset[int], group: int) -> Any:
    """Return the stored database of a group of rows, compiled if it is small; None without one."""
    hyperscan = _import_hyperscan()
    if hyperscan is None:
        return None
    rules = _rules(rows, once)
    with suppress(hyperscan.HyperscanError):
        if len(rules) < _MIN_STORED:
            return _compile_rules(rules)
        stored = database_cache.load(*_name_and_key(rules, group))
        return stored and hyperscan.loadb(stored, hyperscan.HS_MODE_BLOCK)
    return None


def _import_hyperscan() -> Any:
    try:
        return importlib.import_module("hyperscan")
    except ImportError:
        return None


def _rules(rows: _NumberedPatterns, once: frozenset[int]) -> list[_HyperscanRule]:
    hyperscan = _import_hyperscan()
    return [
        (
            row,
            hyperscan.HS_FLAG_MULTILINE
            | (hyperscan.HS_FLAG_CASELESS if ignore else 0)
            | (hyperscan.HS_FLAG_SINGLEMATCH if row in once else 0),
            _GROUP_NAME.sub("(?:", expression).encode(),
        )
        for row, (_, expression, ignore) in rows
    ]


def _name_and_key(rules: Sequence[_HyperscanRule], group: int) -> tuple[str, bytes]:
    """Return the name of a stored database, and what it depends on."""
    hyperscan = _import_hyperscan()
    engine = _compile_rules([(0, 0, b"a")]).info()  # version and features of the processor
    once = "-once" * any(flags & hyperscan.HS_FLAG_SINGLEMATCH for _, flags, _ in rules)
    return f"{group}{once}-{zlib.crc32(engine):08x}", repr((engine, rules)).encode()


def _compile_rules(rules: Sequence[_HyperscanRule]) -> Any:
    hyperscan = _import_hyperscan()
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    ids, flags, expressions = zip(*rules, strict=True)
    database.compile(expressions=expressions, ids=ids, elements=len(ids), flags=flags)
    _release_heap()
    return database


def _release_heap() -> None:
    """Return freed memory to the system: the compiler of a large table leaves 18 MiB (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
