"""Writes target files segment by segment, in any order, with several threads.

Memory is bounded by the largest tensor that must be assembled (one at a time), plus a block per
thread.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from threading import local

import numpy as np

from holdfast.ckpt.contents import Tensor
from holdfast.ckpt.convert.archive_frame import frame_bytes, record_starts
from holdfast.ckpt.convert.crc import combine_crc32
from holdfast.ckpt.convert.files import (
    Archive,
    Part,
    SourceCopy,
    TargetFile,
    TensorBox,
    TensorRun,
    Zeros,
)
from holdfast.ckpt.convert.journal import Journal
from holdfast.ckpt.convert.layout import ArchiveFrame, Segment, TargetLayout
from holdfast.ckpt.tensor_blocks import Array, TensorReader, cast_block
from holdfast.core.errors import CheckpointUnreadable

#: Smaller buffers are combined into one write, at most IOV_MAX (Linux) of them.
_SMALL_BUFFER, _MAX_BUFFERS = 64 << 10, 1024
_BLOCK = 8 << 20
_ZEROS = bytes(1 << 20)
_THREADS = max(2, min(8, (os.cpu_count() or 2)))
Buffer = bytes | memoryview


class TargetWriter:
    """Writes files below ``target`` from data below ``source``; ``advance`` receives bytes."""

    def __init__(
        self, source: Path, target: Path, journal: Journal, advance: Callable[[int], None]
    ) -> None:
        self._source, self._target = source, target
        self._journal, self._advance = journal, advance
        self._readers: list[TensorReader] = []
        self._own = local()

    def write(self, files: Sequence[TargetFile], layout: TargetLayout) -> None:
        """Write segments missing from the journal, then archive frames; see ``Journal.wait``.

        Raises:
            OSError: the disk is full or fails; the journal has what was synced.
            CheckpointUnreadable: the source cannot be read.
        """
        self._create_files(files)
        try:
            done = {segment for segment in layout.segments if self._journal.has(segment)}
            self._advance(sum(segment.size for segment in done))
            self._write_segments([segment for segment in layout.segments if segment not in done])
            for archive_frame in layout.frames:
                self._frame(archive_frame)
            self._journal.sync({archive_frame.path for archive_frame in layout.frames})
        finally:
            for reader in self._readers:
                reader.__exit__(None, None, None)

    def _create_files(self, files: Sequence[TargetFile]) -> None:
        """Create every file in its final size, so that segments can be written anywhere."""
        for file in files:
            path = target_path(self._target, file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as stream:
                stream.truncate(file.size)

    def _write_segments(self, segments: Sequence[Segment]) -> None:
        together: dict[int, tuple[Tensor, list[Segment]]] = {}
        for segment in segments:
            if segment.assembled_tensor is not None:
                together.setdefault(id(segment.assembled_tensor), (segment.assembled_tensor, []))[
                    1
                ].append(segment)
        try:
            for tensor, group in together.values():
                self._write_assembled(tensor, group)
            self._write_in_threads(
                [segment for segment in segments if segment.assembled_tensor is None]
            )
        finally:
            self._journal.flush()

    def _write_in_threads(self, segments: Sequence[Segment]) -> None:
        left = iter(segments)
        with ThreadPoolExecutor(_THREADS, "convert") as pool:
            running: dict[Future[int], Segment] = {}
            try:
                while True:
                    for segment in left:
                        running[pool.submit(self._write_segment, segment)] = segment
                        if len(running) > 2 * _THREADS:
                            break
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        self._journal.add(running.pop(future), future.result())
            finally:
                for future in running:
                    future.cancel()

    def _write_segment(self, segment: Segment) -> int:
        return self._write_buffers(segment, gather_buffers(self._reader(), segment.parts))

    def _write_assembled(self, tensor: Tensor, group: Sequence[Segment]) -> None:
        """Write all segments cut from one tensor, which is read into memory once."""
        assembled = self._reader().read_tensor(tensor)
        for segment in group:
            buffers = (
                buffers_group
                for part in segment.parts
                if isinstance(part, (TensorRun, TensorBox))
                for buffers_group in _cut_from_tensor(assembled, part)
            )
            self._journal.add(segment, self._write_buffers(segment, buffers))

    def _write_buffers(self, segment: Segment, buffers: Iterator[list[Buffer]]) -> int:
        """Write one segment; return its CRC32, or 0 if it is not needed."""
        handle = os.open(target_path(self._target, segment.path), os.O_WRONLY | os.O_CLOEXEC)
        crc, at = 0, segment.offset
        try:
            for buffers_group in buffers:
                if segment.needs_crc:
                    for buffer in buffers_group:
                        crc = zlib.crc32(buffer, crc)
                size = write_at(handle, buffers_group, at)
                at += size
                self._advance(size)
        finally:
            os.close(handle)
        if at != segment.offset + segment.size:
            name = segment.path or self._target.name
            what = f"{name}: wrote {at - segment.offset:,} bytes, expected {segment.size:,}"
            raise CheckpointUnreadable(self._source, why=what)
        return crc

    def _frame(self, archive_frame: ArchiveFrame) -> None:
        checksums = [
            combine_crc32((self._journal.crc_of(segment), segment.size) for segment in segments)
            for segments in archive_frame.records
        ]
        handle = os.open(target_path(self._target, archive_frame.path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            for at, data in frame_bytes(archive_frame.archive.records, checksums):
                write_at(handle, [data], archive_frame.offset + at)
                self._advance(len(data))
        finally:
            os.close(handle)

    def _reader(self) -> TensorReader:
        """Return this thread's reader; readers are not thread-safe."""
        if not hasattr(self._own, "reader"):
            self._own.reader = TensorReader(self._source)
            self._readers.append(self._own.reader)
        reader: TensorReader = self._own.reader
        return reader


def target_path(target: Path, path: str) -> Path:
    """Return the path of a target file. Raises CheckpointUnreadable: it is outside the target."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise CheckpointUnreadable(
            target,
            why=f"a name in the source maps to {path!r}, outside the target",
            next_step="rename that tensor with --map",
        )
    return target / path if path else target


def write_at(handle: int, buffers: Sequence[Buffer], at: int) -> int:
    """Write all buffers from offset ``at``; return the number of bytes."""
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


def gather_buffers(reader: TensorReader, parts: Sequence[Part]) -> Iterator[list[Buffer]]:
    """Yield the bytes of parts: large blocks one by one, small ones combined."""
    pending, size = list[Buffer](), 0
    for part in parts:
        for buffer in read_part(reader, part):
            large = len(buffer) >= _SMALL_BUFFER
            pending.append(buffer if large else bytes(buffer))
            size += len(buffer)
            if large or size >= _BLOCK or len(pending) >= _MAX_BUFFERS:
                yield pending
                pending, size = [], 0
    if pending:
        yield pending


def read_part(reader: TensorReader, part: Part) -> Iterator[Buffer]:
    """Yield the bytes of one part, in blocks that are valid until the next iteration."""
    match part:
        case bytes():
            yield part
        case Zeros():
            for at in range(0, part.size, len(_ZEROS)):
                yield memoryview(_ZEROS)[: min(len(_ZEROS), part.size - at)]
        case TensorRun():
            for block in reader.blocks(part.tensor, part.start, part.stop):
                yield _as_bytes(cast_block(block, part.dtype))
        case SourceCopy():
            for block in reader.read_bytes(part.file, part.offset, part.size):
                yield block.data
        case Archive():
            yield _build_archive(reader, part)
        case TensorBox():
            yield from (
                buffer
                for buffers_group in _cut_from_tensor(reader.read_tensor(part.tensor), part)
                for buffer in buffers_group
            )


def _cut_from_tensor(tensor: Array, part: TensorRun | TensorBox) -> Iterator[list[Buffer]]:
    """Yield a run or box of a tensor in memory, a few rows at a time."""
    if isinstance(part, TensorRun):
        selected = tensor.reshape(-1)[part.start : part.stop]
    else:
        selected = tensor[
            tuple(slice(at, at + n) for at, n in zip(part.start, part.shape, strict=True))
        ]
    selected = selected.reshape(1) if not selected.ndim else selected
    step = max(1, _BLOCK // max(1, selected[:1].nbytes))
    for at in range(0, len(selected), step):
        yield [_as_bytes(np.ascontiguousarray(cast_block(selected[at : at + step], part.dtype)))]


def _build_archive(reader: TensorReader, archive: Archive) -> bytes:
    """Build a complete archive in memory."""
    content = bytearray(archive.size)
    checksums = []
    for record, start in zip(archive.records, record_starts(archive.records), strict=True):
        data = b"".join(
            bytes(buffer) for part in record.parts for buffer in read_part(reader, part)
        )
        checksums.append(zlib.crc32(data))
        content[start : start + len(data)] = data
    for at, data in frame_bytes(archive.records, checksums):
        content[at : at + len(data)] = data
    return bytes(content)


def _as_bytes(block: Array) -> memoryview:
    return block.reshape(-1).view(np.uint8).data
