"""Cuts target files into segments that can be written independently.

A *segment* is about 64 MiB of one file: workers write segments in any order, and an interrupted
conversion resumes after those on disk. A large torch.save file is cut by records, and its *frame*
(headers and directory, which contain each record's CRC32) is written after them; a small one is
part of a segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.ckpt.contents import Tensor, TensorShard
from holdfast.ckpt.convert.archive_frame import record_starts
from holdfast.ckpt.convert.files import (
    Archive,
    Part,
    SourceCopy,
    TargetFile,
    TensorBox,
    TensorRun,
    total_size,
)
from holdfast.ckpt.tensor_blocks import contiguous_runs, run_start

#: Maximum bytes of a segment.
SEGMENT_BYTES = 64 << 20


class Segment(msgspec.Struct, frozen=True, eq=False):
    """``size`` bytes of a file from ``offset``. ``needs_crc``: its CRC32 is needed.

    ``assembled_tensor`` is the tensor that must be assembled in memory before the parts can be
    written.
    """

    path: str
    offset: int
    size: int
    parts: tuple[Part, ...]
    needs_crc: bool = False
    assembled_tensor: Tensor | None = None


class ArchiveFrame(msgspec.Struct, frozen=True, eq=False):
    """The archive at ``offset`` of a file, and the segments of its records."""

    path: str
    offset: int
    archive: Archive
    records: tuple[tuple[Segment, ...], ...]


class TargetLayout(msgspec.Struct, frozen=True):
    """Everything to write."""

    segments: tuple[Segment, ...]
    frames: tuple[ArchiveFrame, ...]


def build_layout(files: Iterable[TargetFile], segment_bytes: int = SEGMENT_BYTES) -> TargetLayout:
    """Cut the files into segments.

    The start of each file, by which readers recognize it, is written last, so that a partial file
    is not taken for a checkpoint.
    """
    cutter = _Cutter(segment_bytes)
    for file in files:
        cutter.file(file)
    return TargetLayout(
        tuple(sorted(cutter.segments, key=lambda item: item.offset == 0)), tuple(cutter.frames)
    )


class _Cutter:
    def __init__(self, segment_bytes: int) -> None:
        self.segments: list[Segment] = []
        self.frames: list[ArchiveFrame] = []
        self._limit = segment_bytes
        self._streams: dict[int, tuple[Tensor, bool]] = {}

    def file(self, file: TargetFile) -> None:
        """Cut one file: large archives separately, the parts between them together."""
        at, between = 0, list[Part]()
        for part in file.parts:
            if isinstance(part, Archive) and not self._is_small(part):
                size = total_size(between)
                self._add_segments(file.path, at, between)
                self._archive(file.path, at + size, part)
                at, between = at + size + part.size, []
            else:
                between.append(part)
        self._add_segments(file.path, at, between)

    def _is_small(self, archive: Archive) -> bool:
        return archive.size <= self._limit and all(
            self._as_streamable(part) is not None
            for record in archive.records
            for part in record.parts
        )

    def _archive(self, path: str, offset: int, archive: Archive) -> None:
        at, record_segments = 0, []
        for record, start in zip(archive.records, record_starts(archive.records), strict=True):
            at = len(self.segments)
            self._add_segments(path, offset + start, record.parts, needs_crc=True)
            record_segments.append(tuple(self.segments[at:]))
        self.frames.append(ArchiveFrame(path, offset, archive, tuple(record_segments)))

    def _add_segments(
        self, path: str, offset: int, parts: Sequence[Part], *, needs_crc: bool = False
    ) -> None:
        """Cut consecutive parts into segments."""
        for group, assembled_tensor in self._group_parts(parts):
            size = total_size(group)
            self.segments.append(Segment(path, offset, size, group, needs_crc, assembled_tensor))
            offset += size

    def _group_parts(
        self, parts: Sequence[Part]
    ) -> Iterator[tuple[tuple[Part, ...], Tensor | None]]:
        pending, size = list[Part](), 0
        for part in parts:
            streamed = self._as_streamable(part)
            if streamed is None:
                if pending:
                    yield tuple(pending), None
                pending, size = [], 0
                yield (part,), part.tensor if isinstance(part, (TensorRun, TensorBox)) else None
                continue
            for shard in _split_part(streamed, self._limit):
                if pending and size + total_size((shard,)) > self._limit:
                    yield tuple(pending), None
                    pending, size = [], 0
                pending.append(shard)
                size += total_size((shard,))
        if pending:
            yield tuple(pending), None

    def _as_streamable(self, part: Part) -> Part | None:
        """Return the part in a form read block by block; None: its tensor must be assembled."""
        if isinstance(part, TensorBox):
            start = run_start(
                part.tensor.shape,
                TensorShard(file="", offset=0, shape=part.shape, start=part.start),
            )
            part = (
                TensorRun(part.tensor, start, start + math.prod(part.shape), part.dtype)
                if start is not None
                else part
            )
        if isinstance(part, Archive):
            return part if self._is_small(part) else None
        if isinstance(part, TensorBox) or (
            isinstance(part, TensorRun) and not self._streams_well(part.tensor)
        ):
            return None
        return part

    def _streams_well(self, tensor: Tensor) -> bool:
        cached = self._streams.get(id(tensor))
        if cached is None:
            streamable = (
                all(shard.strides is None for shard in tensor.shards)
                and contiguous_runs(tensor) is not None
            )
            cached = self._streams[id(tensor)] = (tensor, streamable)
        return cached[1]


def _split_part(part: Part, limit: int) -> Iterator[Part]:
    if isinstance(part, TensorRun) and part.size > limit:
        step = max(1, limit // (part.size // (part.stop - part.start)))
        for start in range(part.start, part.stop, step):
            yield TensorRun(part.tensor, start, min(start + step, part.stop), part.dtype)
    elif isinstance(part, SourceCopy) and part.size > limit:
        for at in range(0, part.size, limit):
            yield SourceCopy(part.file, part.offset + at, min(limit, part.size - at))
    else:
        yield part
