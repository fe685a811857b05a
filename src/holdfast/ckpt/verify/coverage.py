"""Computes whether the shards of a tensor cover it: gaps, overlaps, out-of-bounds shards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from holdfast.ckpt.contents import ITEMSIZE, Tensor, TensorShard
from holdfast.ckpt.tensor_blocks import run_start

#: Maximum grid cells; shards of real checkpoints cut a tensor into a few thousand.
_MAX_CELLS = 1 << 24


class Coverage(msgspec.Struct, frozen=True):
    """Elements ``missing`` from all shards, shards ``outside`` the tensor, elements held ``twice``.

    ``judged`` is False if coverage was not computed.
    """

    missing: int = 0
    outside: tuple[TensorShard, ...] = ()
    twice: int = 0
    judged: bool = True


def measure_coverage(tensor: Tensor) -> Coverage:
    """Return how the shards cover the tensor."""
    outside = tuple(shard for shard in tensor.shards if not _is_inside(tensor, shard))
    inside = [shard for shard in tensor.shards if shard.numel and shard not in outside]
    if len(inside) == 1 and not outside:
        return Coverage(tensor.numel - inside[0].numel)
    starts = [run_start(tensor.shape, shard) for shard in inside]
    contiguous = [at for at in starts if at is not None]
    if len(contiguous) == len(inside):
        missing, twice = _cover_runs(
            tensor.numel, sorted(zip(contiguous, (shard.numel for shard in inside), strict=True))
        )
        return Coverage(missing, outside, twice)
    return _cover_boxes(tensor, inside, outside)


def shard_bytes(shard: TensorShard, dtype: str) -> int:
    """Return the bytes from a shard's first to the end of its last element in the file."""
    if shard.packed:
        return shard.packed
    if not shard.numel:
        return 0
    extent = shard.numel
    if shard.strides is not None:
        extent = 1 + sum((n - 1) * step for n, step in zip(shard.shape, shard.strides, strict=True))
    return extent * ITEMSIZE[dtype]


def overlapping_shards(tensor: Tensor) -> Iterator[tuple[TensorShard, TensorShard]]:
    """Yield pairs of shards that hold common elements.

    Detected for shards of the same region, and for contiguous shards.
    """
    by_part: dict[tuple[bool, tuple[int, ...], tuple[int, ...]], TensorShard] = {}
    single: list[tuple[int, TensorShard]] = []
    for shard in tensor.shards:
        first = by_part.setdefault((shard.flat, shard.start, shard.shape), shard)
        if first is not shard:
            yield first, shard
        elif (at := run_start(tensor.shape, shard)) is not None and shard.numel:
            single.append((at, shard))
    single.sort(key=lambda item: item[0])
    last: tuple[int, TensorShard] | None = None
    for at, shard in single:
        if last is not None and at < last[0]:
            yield last[1], shard
        if last is None or at + shard.numel > last[0]:
            last = (at + shard.numel, shard)


def _is_inside(tensor: Tensor, shard: TensorShard) -> bool:
    shape = (tensor.numel,) if shard.flat else tensor.shape
    if len(shard.shape) != len(shape) or len(shard.start) != len(shape):
        return False
    return all(
        at >= 0 and n >= 0 and at + n <= dim
        for at, n, dim in zip(shard.start, shard.shape, shape, strict=True)
    )


def _cover_runs(numel: int, runs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the elements in no run and in several; runs are sorted (start, size)."""
    at, missing, twice = 0, 0, 0
    for start, size in runs:
        missing += max(0, start - at)
        twice += max(0, min(at, start + size) - start)
        at = max(at, start + size)
    return missing + max(0, numel - at), twice


def _cover_boxes(
    tensor: Tensor, inside: Sequence[TensorShard], outside: tuple[TensorShard, ...]
) -> Coverage:
    """Compute coverage on the grid of all indices where a shard starts or ends."""
    boxes = list(dict.fromkeys((shard.start, shard.shape) for shard in inside if not shard.flat))
    cuts = [
        sorted(
            {
                0,
                dim,
                *(start[axis] for start, _ in boxes),
                *(start[axis] + shape[axis] for start, shape in boxes),
            }
        )
        for axis, dim in enumerate(tensor.shape)
    ]
    if any(shard.flat for shard in inside) or math.prod(len(edges) for edges in cuts) > _MAX_CELLS:
        return Coverage(0, outside, judged=False)
    cell_of = [{at: number for number, at in enumerate(edges)} for edges in cuts]
    hits = np.zeros([len(edges) - 1 for edges in cuts], np.int32)
    for start, shape in boxes:
        hits[
            tuple(
                slice(cell_of[axis][at], cell_of[axis][at + n])
                for axis, (at, n) in enumerate(zip(start, shape, strict=True))
            )
        ] += 1
    sizes = np.ones((), np.int64)
    for edges in cuts:
        sizes = np.multiply.outer(sizes, np.diff(edges))
    replicas = len(inside) - len(boxes)
    return Coverage(int(sizes[hits == 0].sum()), outside, int(sizes[hits > 1].sum()) + replicas)
