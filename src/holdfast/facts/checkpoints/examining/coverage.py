"""Whether the pieces of a tensor make it up: none beyond its edges, each element in one of them, which lie twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from holdfast.facts.checkpoints.contents import ITEMSIZE, Piece, Tensor
from holdfast.facts.checkpoints.pieces import run_start

#: Cells of a grid that are looked at; pieces of real checkpoints cut a tensor into some thousands.
_MOST_CELLS = 1 << 24


class Cover(msgspec.Struct, frozen=True):
    """``missing`` elements are in no piece, ``outside`` are pieces beyond the edges, ``twice`` elements in several."""

    missing: int = 0
    outside: tuple[Piece, ...] = ()
    twice: int = 0
    judged: bool = True


def cover(tensor: Tensor) -> Cover:
    """How the tensor is covered by its pieces."""
    outside = tuple(piece for piece in tensor.pieces if not _inside(tensor, piece))
    inside = [piece for piece in tensor.pieces if piece.numel and piece not in outside]
    if len(inside) == 1 and not outside:
        return Cover(tensor.numel - inside[0].numel)
    starts = [run_start(tensor.shape, piece) for piece in inside]
    known = [at for at in starts if at is not None]
    if len(known) == len(inside):
        missing, twice = _of_runs(tensor.numel, sorted(zip(known, (each.numel for each in inside), strict=True)))
        return Cover(missing, outside, twice)
    return _of_boxes(tensor, inside, outside)


def bytes_of(piece: Piece, dtype: str) -> int:
    """Bytes from its first element to the end of its last in the file; 0 where there is none."""
    if piece.packed:
        return piece.packed
    if not piece.numel:
        return 0
    extent = piece.numel
    if piece.strides is not None:
        extent = 1 + sum((n - 1) * step for n, step in zip(piece.shape, piece.strides, strict=True))
    return extent * ITEMSIZE[dtype]


def overlaps(tensor: Tensor) -> Iterator[tuple[Piece, Piece]]:
    """Pairs of pieces that hold the same elements, as far as both are the same part, or both are runs of the tensor."""
    by_part: dict[tuple[bool, tuple[int, ...], tuple[int, ...]], Piece] = {}
    single: list[tuple[int, Piece]] = []
    for piece in tensor.pieces:
        first = by_part.setdefault((piece.flat, piece.start, piece.shape), piece)
        if first is not piece:
            yield first, piece
        elif (at := run_start(tensor.shape, piece)) is not None and piece.numel:
            single.append((at, piece))
    single.sort(key=lambda each: each[0])
    last: tuple[int, Piece] | None = None
    for at, piece in single:
        if last is not None and at < last[0]:
            yield last[1], piece
        if last is None or at + piece.numel > last[0]:
            last = (at + piece.numel, piece)


def _inside(tensor: Tensor, piece: Piece) -> bool:
    shape = (tensor.numel,) if piece.flat else tensor.shape
    if len(piece.shape) != len(shape) or len(piece.start) != len(shape):
        return False
    return all(
        at >= 0 and n >= 0 and at + n <= whole for at, n, whole in zip(piece.start, piece.shape, shape, strict=True)
    )


def _of_runs(numel: int, runs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Elements in none and elements in several of the runs (first element, how many), which are sorted."""
    at, missing, twice = 0, 0, 0
    for start, size in runs:
        missing += max(0, start - at)
        twice += max(0, min(at, start + size) - start)
        at = max(at, start + size)
    return missing + max(0, numel - at), twice


def _of_boxes(tensor: Tensor, inside: Sequence[Piece], outside: tuple[Piece, ...]) -> Cover:
    """By a grid of all the places at which some piece begins or ends."""
    boxes = list(dict.fromkeys((piece.start, piece.shape) for piece in inside if not piece.flat))
    cuts = [
        sorted({0, dim, *(start[axis] for start, _ in boxes), *(start[axis] + shape[axis] for start, shape in boxes)})
        for axis, dim in enumerate(tensor.shape)
    ]
    if any(piece.flat for piece in inside) or math.prod(len(each) for each in cuts) > _MOST_CELLS:
        return Cover(0, outside, judged=False)
    places = [{at: number for number, at in enumerate(each)} for each in cuts]
    times = np.zeros([len(each) - 1 for each in cuts], np.int32)
    for start, shape in boxes:
        times[
            tuple(
                slice(places[axis][at], places[axis][at + n])
                for axis, (at, n) in enumerate(zip(start, shape, strict=True))
            )
        ] += 1
    sizes = np.ones((), np.int64)
    for each in cuts:
        sizes = np.multiply.outer(sizes, np.diff(each))
    replicas = len(inside) - len(boxes)
    return Cover(int(sizes[times == 0].sum()), outside, int(sizes[times > 1].sum()) + replicas)
