"""Lines that a terminal or an editor broke at a column: 80, 120, or that of the window.

The width is that of the longest lines. A line of this width continues in the next one, unless that
begins as lines of this log do; some words must be broken, and some parts shorter. An editor breaks
between words: the first word of the next line would not have fitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from holdfast.diagnose.transports import MAX_HELD_BYTES, CarriedLine, FirstLines, TransportDecoder

_WIDTHS = range(60, 320)
#: Lines of the full width that continue; one is enough for the width of a common terminal.
_MIN_BROKEN = 2
#: Share of the lines that continue one and are shorter.
_MIN_ENDS = 0.1
_COMMON_WIDTHS = (80, 100, 120, 132, 160)
#: Editors break at these columns.
_EDITOR_WIDTHS = range(66, 81)
_MIN_BROKEN_BY_EDITOR = 4
#: Beginnings of lines that are no continuation.
_BEGINNING = re.compile(
    rb"\[(?:rank|default|Rank )\d|\[?\d{4}-\d\d-\d\d|Traceback \(most|\s*File \""
    rb"|\[?[WEIF]\d{3,4} \d\d:"
    rb"|(?:\w+\.)*\w*(?:Error|Exception|Warning)\b|(.)\1{9}|\s*(?:[~^]+|rank|host|time|exitcode)\s*:?\s"
)
_BEGINNING_CHARACTERS = 8
_WORD_PART = re.compile(rb"[\w/=(-]")
_RULER = re.compile(rb"(.)\1*$")


def recognize_wrapping(first: FirstLines) -> Callable[[], TransportDecoder] | None:
    """Claim a log with several longest lines of one length, which the next lines continue."""
    contents = first.contents
    lengths = first.lengths if first.data.isascii() else list(map(_length, contents))
    width = max(lengths, default=0)
    needed = 1 if width in _COMMON_WIDTHS else _MIN_BROKEN
    if width not in _WIDTHS or lengths.count(width) - (lengths[-1] == width) < needed:
        return _recognize_editor(contents, lengths)
    broken = {
        line: after
        for length, line, after in zip(lengths, contents, contents[1:], strict=False)
        if length == width and not _BEGINNING.match(after) and not _RULER.match(line)
    }
    if _is_broken_within_words(broken, needed):
        starts = _beginnings(contents, [length >= width - 1 for length in lengths])
        broken = {line: after for line, after in broken.items() if _shape(after) not in starts}
        ends = sum(_length(after) < width - 1 for after in broken.values())
        is_table = ends <= _MIN_ENDS * len(broken)
        # A log's first line may have this length by chance: nothing shows how its lines begin.
        is_chance = list(broken) == contents[:1]
        if _is_broken_within_words(broken, needed) and not is_table and not is_chance:
            return partial(WrappedLines, width, starts, between_words=False)
    return _recognize_editor(contents, lengths)


def _recognize_editor(
    contents: Sequence[bytes], lengths: Sequence[int]
) -> Callable[[], TransportDecoder] | None:
    """Claim a log whose lines are broken between words, at a column of mails."""
    widest = max(lengths, default=0)
    if widest >= _EDITOR_WIDTHS.stop and b" " in contents[lengths.index(widest)].strip():
        return None
    pairs = zip(contents, lengths, strict=True)
    width = max((length for line, length in pairs if b" " in line.strip()), default=0)
    if width not in _EDITOR_WIDTHS:
        return None
    full = [_is_full(line, after, width) for line, after in pairwise(contents)]
    starts = _beginnings(contents, full)
    # A line that occurs repeatedly is whole: parts of a line that was broken occur once.
    continuing = {
        line: after
        for (line, after), is_full in zip(pairwise(contents), full, strict=True)
        if is_full
    }
    if sum(not _begins(after, starts) for after in continuing.values()) < _MIN_BROKEN_BY_EDITOR:
        return None
    return partial(WrappedLines, width, starts, between_words=True)


def _beginnings(contents: Sequence[bytes], is_full: Sequence[bool]) -> frozenset[bytes]:
    """Return how the lines begin that follow no full line; those continue no other."""
    pairs = zip(contents[1:], is_full, strict=False)
    return frozenset(
        map(_shape, (*contents[:1], *(line for line, after_full in pairs if not after_full)))
    )


def _is_broken_within_words(broken: Mapping[bytes, bytes], needed: int) -> bool:
    return len(broken) >= needed and any(_is_within_word(*pair) for pair in broken.items())


def _is_within_word(line: bytes, after: bytes) -> bool:
    return bool(_WORD_PART.match(line[-1:]) and _WORD_PART.match(after))


def _begins(line: bytes, starts: frozenset[bytes]) -> bool:
    return bool(_BEGINNING.match(line)) or _shape(line) in starts


def _shape(line: bytes) -> bytes:
    return re.sub(rb"\d+", b"0", line[: 4 * _BEGINNING_CHARACTERS])[:_BEGINNING_CHARACTERS]


def _is_full(line: bytes, after: bytes, width: int) -> bool:
    """Return whether the first word of ``after`` did not fit on ``line``."""
    words = after.split(b" ", 1)
    return bool(line.strip()) and len(line) <= width < len(line) + 1 + len(words[0])


def _length(content: bytes) -> int:
    return len(content) if content.isascii() else len(content.decode(errors="replace"))


class WrappedLines:
    """Joins a line that is full with the one that continues it."""

    def __init__(self, width: int, starts: frozenset[bytes], *, between_words: bool) -> None:
        self._width, self._starts, self._between_words = width, starts, between_words
        self._held: CarriedLine | None = None
        self._last_part = b""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the line before, unless ``line`` continues it."""
        content = line.content
        before, held = self._last_part, self._held
        self._last_part = content
        if held is not None and self._continues(before, content, len(held.text)):
            joint = b" " if self._between_words else b" " * (self._width - _length(before))
            self._held = held.with_text(held.content + joint + content)
            return ()
        self._held = line.with_text(content)
        return () if held is None else (held,)

    def flush(self) -> Iterable[CarriedLine]:
        """Return the line that was held."""
        held, self._held = self._held, None
        return () if held is None else (held,)

    def _continues(self, before: bytes, content: bytes, held_bytes: int) -> bool:
        if not content or held_bytes > MAX_HELD_BYTES or _RULER.match(before):
            return False
        is_full = (
            _is_full(before, content, self._width)
            if self._between_words
            # A copied line has no spaces at its end.
            else _length(before) in (self._width, self._width - 1)
        )
        return is_full and not _begins(content, self._starts)
