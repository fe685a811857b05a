"""Where each part of a target's files comes to stand, cut into stretches that are written apart from each other.

A *stretch* is some 64 MiB of one file: workers write them in any order, and a conversion that was cut off goes on after
those that are on the disk. A large file of torch.save is cut into its records' stretches, and its *frame* (headers and
directory, which have a CRC32 of each record) is written when they are there; a small one is part of a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.actions.conversion.files import Archive, Box, Copy, File, Part, Run, size_of
from holdfast.actions.conversion.frames import starts
from holdfast.facts.checkpoints.contents import Piece, Tensor
from holdfast.facts.checkpoints.pieces import run_start, runs

#: Bytes that are written, and remembered as written, at a time.
STRETCH = 64 << 20


class Stretch(msgspec.Struct, frozen=True, eq=False):
    """``size`` bytes of a file from ``offset`` on. ``sum``: a CRC32 of it is wanted.

    ``whole`` is the one tensor that has to be put together in memory before any of its parts can be written.
    """

    path: str
    offset: int
    size: int
    parts: tuple[Part, ...]
    sum: bool = False
    whole: Tensor | None = None


class Frame(msgspec.Struct, frozen=True, eq=False):
    """The archive at ``offset`` of a file, and the stretches that its records are made of."""

    path: str
    offset: int
    archive: Archive
    records: tuple[tuple[Stretch, ...], ...]


class Layout(msgspec.Struct, frozen=True):
    """Everything that is written of some files."""

    stretches: tuple[Stretch, ...]
    frames: tuple[Frame, ...]


def lay_out(files: Iterable[File], stretch: int = STRETCH) -> Layout:
    """Cut the files. The beginning of each, by which readers know it, comes last: half of a file is taken for none."""
    cutter = _Cutter(stretch)
    for file in files:
        cutter.file(file)
    return Layout(tuple(sorted(cutter.stretches, key=lambda each: each.offset == 0)), tuple(cutter.frames))


class _Cutter:
    def __init__(self, stretch: int) -> None:
        self.stretches: list[Stretch] = []
        self.frames: list[Frame] = []
        self._limit = stretch
        self._streams: dict[int, tuple[Tensor, bool]] = {}

    def file(self, file: File) -> None:
        """Cut one file: large archives by themselves, what stands between them together."""
        at, between = 0, list[Part]()
        for part in file.parts:
            if isinstance(part, Archive) and not self._is_small(part):
                size = size_of(between)
                self._add(file.path, at, between)
                self._archive(file.path, at + size, part)
                at, between = at + size + part.size, []
            else:
                between.append(part)
        self._add(file.path, at, between)

    def _is_small(self, archive: Archive) -> bool:
        return archive.size <= self._limit and all(
            self._streamed(part) is not None for record in archive.records for part in record.parts
        )

    def _archive(self, path: str, offset: int, archive: Archive) -> None:
        at, found = 0, []
        for record, start in zip(archive.records, starts(archive.records), strict=True):
            at = len(self.stretches)
            self._add(path, offset + start, record.parts, wants_sum=True)
            found.append(tuple(self.stretches[at:]))
        self.frames.append(Frame(path, offset, archive, tuple(found)))

    def _add(self, path: str, offset: int, parts: Sequence[Part], *, wants_sum: bool = False) -> None:
        """Cut a row of parts into stretches."""
        for each, whole in self._grouped(parts):
            size = size_of(each)
            self.stretches.append(Stretch(path, offset, size, each, wants_sum, whole))
            offset += size

    def _grouped(self, parts: Sequence[Part]) -> Iterator[tuple[tuple[Part, ...], Tensor | None]]:
        held, size = list[Part](), 0
        for part in parts:
            streamed = self._streamed(part)
            if streamed is None:
                if held:
                    yield tuple(held), None
                held, size = [], 0
                yield (part,), part.tensor if isinstance(part, (Run, Box)) else None
                continue
            for piece in _cut(streamed, self._limit):
                if held and size + size_of((piece,)) > self._limit:
                    yield tuple(held), None
                    held, size = [], 0
                held.append(piece)
                size += size_of((piece,))
        if held:
            yield tuple(held), None

    def _streamed(self, part: Part) -> Part | None:
        """The part in a form that is read block by block; None where its tensor has to be put together first."""
        if isinstance(part, Box):
            start = run_start(part.tensor.shape, Piece(file="", offset=0, shape=part.shape, start=part.start))
            part = Run(part.tensor, start, start + math.prod(part.shape), part.dtype) if start is not None else part
        if isinstance(part, Archive):
            return part if self._is_small(part) else None
        if isinstance(part, Box) or (isinstance(part, Run) and not self._streams_well(part.tensor)):
            return None
        return part

    def _streams_well(self, tensor: Tensor) -> bool:
        known = self._streams.get(id(tensor))
        if known is None:
            found = all(piece.strides is None for piece in tensor.pieces) and runs(tensor) is not None
            known = self._streams[id(tensor)] = (tensor, found)
        return known[1]


def _cut(part: Part, limit: int) -> Iterator[Part]:
    if isinstance(part, Run) and part.size > limit:
        step = max(1, limit // (part.size // (part.stop - part.start)))
        for start in range(part.start, part.stop, step):
            yield Run(part.tensor, start, min(start + step, part.stop), part.dtype)
    elif isinstance(part, Copy) and part.size > limit:
        for at in range(0, part.size, limit):
            yield Copy(part.file, part.offset + at, min(limit, part.size - at))
    else:
        yield part
