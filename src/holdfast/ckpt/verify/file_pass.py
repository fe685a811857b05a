"""Reads the files of a checkpoint once, in byte order, for all consumers of their bytes.

    file ── block ── block ── block ─▶
    spans   └─ record: CRC32 ──┘
               └ shard: values ┘

A checksum and the values it covers are read once, at the speed of the disk. Ranges that no span
crosses are read by several threads: reading, hashing and counting release the GIL.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.ckpt.verify.values import ValueCounter
from holdfast.core.text import os_error_reason

_BLOCK = 4 << 20
#: Minimum size of the range that one thread reads.
_BATCH_BYTES = 64 << 20
_THREADS = min(4, os.cpu_count() or 1)

#: Receives the bytes read since the last call and their file; calls are serialized.
ProgressCallback = Callable[[int, str], None]


class Span:
    """Bytes ``start`` to ``stop`` of a file that a consumer needs in order.

    ``complete`` is True once all of them have been fed.
    """

    def __init__(self, file: str, start: int, stop: int) -> None:
        self.file, self.start, self.stop = file, start, stop
        self.complete = start == stop

    def update(self, data: memoryview) -> None:
        """Consume the next bytes."""
        raise NotImplementedError


class ChecksumSpan(Span):
    """A record of a file with the CRC32 that the file stores for it."""

    def __init__(self, file: str, start: int, stop: int, record: str, expected: int) -> None:
        super().__init__(file, start, stop)
        self.record, self.expected, self.actual = record, expected, 0

    @property
    def wrong(self) -> bool:
        """Return whether all bytes were read and the CRC32 does not match."""
        return self.complete and self.actual != self.expected

    def update(self, data: memoryview) -> None:
        """See :class:`Span`."""
        self.actual = zlib.crc32(data, self.actual)


class ValueSpan(Span):
    """A contiguous run of tensor values; ``key`` is the caller's identifier."""

    def __init__(
        self, file: str, start: int, stop: int, dtype: str, key: tuple[str, str, int]
    ) -> None:
        super().__init__(file, start, stop)
        self.key, self._counter = key, ValueCounter(dtype, start)
        self.counts = self._counter.counts

    def update(self, data: memoryview) -> None:
        """See :class:`Span`."""
        self._counter.update(data)


def read_spans(
    root: Path, spans: Sequence[Span], on_progress: ProgressCallback | None = None
) -> Mapping[str, str]:
    """Feed each span its bytes; return why for each file that could not be read completely."""
    broken: dict[str, str] = {}
    lock = threading.Lock()

    def report(size: int, file: str) -> None:
        if on_progress is not None:
            with lock:
                on_progress(size, file)

    with ThreadPoolExecutor(_THREADS) as pool:
        batches = list(_batches(spans))
        for batch, why in zip(
            batches, pool.map(lambda batch: _read_batch(root, batch, report), batches), strict=True
        ):
            if why:
                broken.setdefault(batch[0].file, why)
    return broken


def _batches(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Yield spans of one file that are read together, cut where no span crosses."""
    gathered: list[Span] = []
    first, last = 0, 0
    for span in sorted(
        (span for span in spans if not span.complete), key=lambda span: (span.file, span.start)
    ):
        fresh = not gathered or span.file != gathered[0].file
        if fresh or (span.start >= last and last - first >= _BATCH_BYTES):
            if gathered:
                yield gathered
            gathered, first, last = [], span.start, span.start
        gathered.append(span)
        last = max(last, span.stop)
    if gathered:
        yield gathered


def _read_batch(root: Path, spans: Sequence[Span], on_progress: ProgressCallback) -> str:
    """Read one batch; return why it could not be read completely, or ''."""
    file = spans[0].file
    try:
        handle = os.open(root / file if file else root, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return os_error_reason(error)
    buffer = memoryview(bytearray(min(_BLOCK, max(span.stop for span in spans) - spans[0].start)))
    try:
        return _feed_spans(handle, spans, buffer, on_progress)
    except OSError as error:
        return os_error_reason(error)
    finally:
        os.close(handle)


def _feed_spans(
    handle: int, spans: Sequence[Span], buffer: memoryview, on_progress: ProgressCallback
) -> str:
    waiting = list(reversed(spans))
    active: list[Span] = []
    at = 0
    while waiting or active:
        if not active:
            at = max(at, waiting[-1].start)
        while waiting and waiting[-1].start < at + len(buffer):
            active.append(waiting.pop())
        upto = min(at + len(buffer), max(span.stop for span in active))
        got = os.preadv(handle, [buffer[: upto - at]], at)
        if got <= 0:
            return f"it is truncated: byte {at:,} does not exist"
        for span in active:
            lower, upper = max(span.start, at), min(span.stop, at + got)
            if lower < upper:
                span.update(buffer[lower - at : upper - at])
            span.complete = span.stop <= at + got
        at += got
        active = [span for span in active if not span.complete]
        on_progress(got, spans[0].file)
    return ""
