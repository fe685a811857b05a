"""One pass over the files of a checkpoint, in the order of their bytes, for everything that wants to see them.

    file ── block ── block ── block ─▶
    spans   └─ record: CRC32 ─┘
               └ piece: its numbers ┘

A checksum and the numbers it covers are then read once, and a checkpoint as fast as the disk gives it. Parts of files
between which no span reaches are read by several threads: reading, hashing and counting leave Python's lock.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.facts.checkpoints.examining.numbers import Counter

_BLOCK = 4 << 20
#: A part of a file that one thread reads in one go is at least so large.
_STRETCH = 64 << 20
_THREADS = min(4, os.cpu_count() or 1)

#: Hears how many bytes were read since it heard last, and of which file; from several threads, one at a time.
Tell = Callable[[int, str], None]


class Span:
    """Bytes ``start`` to ``stop`` of a file that something wants to see in order; ``whole`` once it has."""

    def __init__(self, file: str, start: int, stop: int) -> None:
        self.file, self.start, self.stop = file, start, stop
        self.whole = start == stop

    def update(self, data: memoryview) -> None:
        """The next bytes."""
        raise NotImplementedError


class Checksum(Span):
    """A CRC32 that the file itself holds, of one of its records."""

    def __init__(self, file: str, start: int, stop: int, record: str, expected: int) -> None:
        super().__init__(file, start, stop)
        self.record, self.expected, self.found = record, expected, 0

    @property
    def wrong(self) -> bool:
        """All its bytes were seen, and they are not those that were written."""
        return self.whole and self.found != self.expected

    def update(self, data: memoryview) -> None:
        """See :class:`Span`."""
        self.found = zlib.crc32(data, self.found)


class Numbers(Span):
    """A run of the numbers of a tensor; ``key`` is whatever the caller knows it by."""

    def __init__(self, file: str, start: int, stop: int, dtype: str, key: tuple[str, str, int]) -> None:
        super().__init__(file, start, stop)
        self.key, self._counter = key, Counter(dtype)
        self.counts = self._counter.counts

    def update(self, data: memoryview) -> None:
        """See :class:`Span`."""
        self._counter.update(data)


def walk(root: Path, spans: Sequence[Span], tell: Tell | None = None) -> Mapping[str, str]:
    """Show each span its bytes; gives for each file that could not be read to the end of them why not."""
    broken: dict[str, str] = {}
    lock = threading.Lock()

    def told(size: int, file: str) -> None:
        if tell is not None:
            with lock:
                tell(size, file)

    with ThreadPoolExecutor(_THREADS) as pool:
        stretches = list(_stretches(spans))
        for stretch, why in zip(stretches, pool.map(lambda each: _read(root, each, told), stretches), strict=True):
            if why:
                broken.setdefault(stretch[0].file, why)
    return broken


def _stretches(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Spans of one file that are read together, in order: cut where none reaches over, and enough has come together."""
    gathered: list[Span] = []
    first, last = 0, 0
    for span in sorted((each for each in spans if not each.whole), key=lambda each: (each.file, each.start)):
        fresh = not gathered or span.file != gathered[0].file
        if fresh or (span.start >= last and last - first >= _STRETCH):
            if gathered:
                yield gathered
            gathered, first, last = [], span.start, span.start
        gathered.append(span)
        last = max(last, span.stop)
    if gathered:
        yield gathered


def _read(root: Path, spans: Sequence[Span], tell: Tell) -> str:
    """Read one stretch; why it could not be read to its end, or nothing."""
    file = spans[0].file
    try:
        handle = os.open(root / file if file else root, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    room = memoryview(bytearray(min(_BLOCK, max(span.stop for span in spans) - spans[0].start)))
    try:
        return _show(handle, spans, room, tell)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    finally:
        os.close(handle)


def _show(handle: int, spans: Sequence[Span], room: memoryview, tell: Tell) -> str:
    waiting = list(reversed(spans))
    active: list[Span] = []
    at = 0
    while waiting or active:
        if not active:
            at = max(at, waiting[-1].start)
        while waiting and waiting[-1].start < at + len(room):
            active.append(waiting.pop())
        upto = min(at + len(room), max(span.stop for span in active))
        got = os.preadv(handle, [room[: upto - at]], at)
        if got <= 0:
            return f"it is cut short: it has no byte {at:,}"
        for span in active:
            lower, upper = max(span.start, at), min(span.stop, at + got)
            if lower < upper:
                span.update(room[lower - at : upper - at])
            span.whole = span.stop <= at + got
        at += got
        active = [span for span in active if not span.whole]
        tell(got, spans[0].file)
    return ""
