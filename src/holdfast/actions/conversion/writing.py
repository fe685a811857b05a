"""Writes the files of a target: stretch by stretch, in any order, by several threads, each byte synced and remembered.

Memory is bounded by the largest tensor that has to be put together (one at a time), and a block for each thread.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from threading import local

import numpy as np

from holdfast.actions.conversion.files import Archive, Box, Copy, File, Part, Run, Zeros
from holdfast.actions.conversion.frames import frame, starts
from holdfast.actions.conversion.journal import Journal
from holdfast.actions.conversion.layout import Frame, Layout, Stretch
from holdfast.actions.conversion.sums import combined
from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Tensor
from holdfast.facts.checkpoints.pieces import Array, Reader, cast

#: Smaller buffers are gathered before they are written; so many at once, which is what Linux takes (IOV_MAX).
_SMALL, _MOST_BUFFERS = 64 << 10, 1024
_BLOCK = 8 << 20
_ZEROS = bytes(1 << 20)
_THREADS = max(2, min(8, (os.cpu_count() or 2)))
Buffer = bytes | memoryview


class Writer:
    """Writes below ``target`` what is read below ``source``. ``advance`` is told the bytes of each thing written."""

    def __init__(self, source: Path, target: Path, journal: Journal, advance: Callable[[int], None]) -> None:
        self._source, self._target = source, target
        self._journal, self._advance = journal, advance
        self._readers: list[Reader] = []
        self._own = local()

    def write(self, files: Sequence[File], layout: Layout) -> None:
        """Write what the journal does not have yet, then the frames of archives; ``journal.settle`` ends it.

        Raises:
            OSError: the disk is full, or fails; what was synced is in the journal.
            CheckpointUnreadable: the source cannot be read.
        """
        self._make(files)
        try:
            done = {stretch for stretch in layout.stretches if self._journal.has(stretch)}
            self._advance(sum(stretch.size for stretch in done))
            self._all([stretch for stretch in layout.stretches if stretch not in done])
            for each in layout.frames:
                self._frame(each)
            self._journal.sync({each.path for each in layout.frames})
        finally:
            for reader in self._readers:
                reader.__exit__(None, None, None)

    def _make(self, files: Sequence[File]) -> None:
        """Every file in its size, so that stretches can be written anywhere in it."""
        for file in files:
            path = place(self._target, file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as stream:
                stream.truncate(file.size)

    def _all(self, stretches: Sequence[Stretch]) -> None:
        together: dict[int, tuple[Tensor, list[Stretch]]] = {}
        for stretch in stretches:
            if stretch.whole is not None:
                together.setdefault(id(stretch.whole), (stretch.whole, []))[1].append(stretch)
        try:
            for tensor, group in together.values():
                self._put_together(tensor, group)
            self._in_threads([stretch for stretch in stretches if stretch.whole is None])
        finally:
            self._journal.flush()

    def _in_threads(self, stretches: Sequence[Stretch]) -> None:
        left = iter(stretches)
        with ThreadPoolExecutor(_THREADS, "convert") as pool:
            running: dict[Future[int], Stretch] = {}
            try:
                while True:
                    for stretch in left:
                        running[pool.submit(self._stretch, stretch)] = stretch
                        if len(running) > 2 * _THREADS:
                            break
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        self._journal.add(running.pop(future), future.result())
            finally:
                for future in running:
                    future.cancel()

    def _stretch(self, stretch: Stretch) -> int:
        return self._put(stretch, gathered(self._reader(), stretch.parts))

    def _put_together(self, tensor: Tensor, group: Sequence[Stretch]) -> None:
        """All stretches that are cut out of one tensor, which is in memory for them once."""
        whole = self._reader().whole(tensor)
        for stretch in group:
            buffers = (some for part in stretch.parts if isinstance(part, (Run, Box)) for some in _cut_out(whole, part))
            self._journal.add(stretch, self._put(stretch, buffers))

    def _put(self, stretch: Stretch, buffers: Iterator[list[Buffer]]) -> int:
        """Write one stretch; gives its CRC32, or 0 where none is wanted."""
        handle = os.open(place(self._target, stretch.path), os.O_WRONLY | os.O_CLOEXEC)
        crc, at = 0, stretch.offset
        try:
            for some in buffers:
                if stretch.sum:
                    for buffer in some:
                        crc = zlib.crc32(buffer, crc)
                size = write_at(handle, some, at)
                at += size
                self._advance(size)
        finally:
            os.close(handle)
        if at != stretch.offset + stretch.size:
            what = f"{stretch.path or self._target.name} got {at - stretch.offset:,} bytes, not {stretch.size:,}"
            raise CheckpointUnreadable(self._source, why=what)
        return crc

    def _frame(self, found: Frame) -> None:
        sums = [
            combined((self._journal.sum_of(stretch), stretch.size) for stretch in stretches)
            for stretches in found.records
        ]
        handle = os.open(place(self._target, found.path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            for at, data in frame(found.archive.records, sums):
                write_at(handle, [data], found.offset + at)
                self._advance(len(data))
        finally:
            os.close(handle)

    def _reader(self) -> Reader:
        """This thread's own: a reader's files are not shared."""
        if not hasattr(self._own, "reader"):
            self._own.reader = Reader(self._source)
            self._readers.append(self._own.reader)
        found: Reader = self._own.reader
        return found


def place(target: Path, path: str) -> Path:
    """Where a file of a target stands. Raises CheckpointUnreadable: it would be outside of it."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise CheckpointUnreadable(target, why=f"a name in the source leads to {path!r}, outside of the target",
                                   next_step="give that tensor another name with --map")  # fmt: skip
    return target / path if path else target


def write_at(handle: int, buffers: Sequence[Buffer], at: int) -> int:
    """Write all of the buffers from byte ``at`` on; gives how many bytes those are."""
    views = [memoryview(buffer).cast("B") if len(buffer) else memoryview(b"") for buffer in buffers]
    size = sum(len(view) for view in views)
    left, offset = size, at
    while left:
        written = os.pwritev(handle, views, offset)
        left, offset = left - written, offset + written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]
    return size


def gathered(reader: Reader, parts: Sequence[Part]) -> Iterator[list[Buffer]]:
    """The bytes of parts: large blocks one by one, small ones together."""
    held, size = list[Buffer](), 0
    for part in parts:
        for buffer in bytes_of(reader, part):
            large = len(buffer) >= _SMALL
            held.append(buffer if large else bytes(buffer))
            size += len(buffer)
            if large or size >= _BLOCK or len(held) >= _MOST_BUFFERS:
                yield held
                held, size = [], 0
    if held:
        yield held


def bytes_of(reader: Reader, part: Part) -> Iterator[Buffer]:
    """The bytes of one part, in blocks that are good until the next is asked for."""
    match part:
        case bytes():
            yield part
        case Zeros():
            for at in range(0, part.size, len(_ZEROS)):
                yield memoryview(_ZEROS)[: min(len(_ZEROS), part.size - at)]
        case Run():
            for block in reader.blocks(part.tensor, part.start, part.stop):
                yield _raw(cast(block, part.dtype))
        case Copy():
            for block in reader.raw(part.file, part.offset, part.size):
                yield block.data
        case Archive():
            yield _small(reader, part)
        case Box():
            yield from (buffer for some in _cut_out(reader.whole(part.tensor), part) for buffer in some)


def _cut_out(whole: Array, part: Run | Box) -> Iterator[list[Buffer]]:
    """A run or box of a tensor that is in memory, a few of its rows at a time."""
    if isinstance(part, Run):
        found = whole.reshape(-1)[part.start : part.stop]
    else:
        found = whole[tuple(slice(at, at + n) for at, n in zip(part.start, part.shape, strict=True))]
    found = found.reshape(1) if not found.ndim else found
    step = max(1, _BLOCK // max(1, found[:1].nbytes))
    for at in range(0, len(found), step):
        yield [_raw(np.ascontiguousarray(cast(found[at : at + step], part.dtype)))]


def _small(reader: Reader, archive: Archive) -> bytes:
    """A whole archive in memory."""
    found = bytearray(archive.size)
    sums = []
    for record, start in zip(archive.records, starts(archive.records), strict=True):
        data = b"".join(bytes(buffer) for part in record.parts for buffer in bytes_of(reader, part))
        sums.append(zlib.crc32(data))
        found[start : start + len(data)] = data
    for at, data in frame(archive.records, sums):
        found[at : at + len(data)] = data
    return bytes(found)


def _raw(block: Array) -> memoryview:
    return block.reshape(-1).view(np.uint8).data
