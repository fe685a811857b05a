"""Compares two tensors value by value, block by block, wherever they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from holdfast.ckpt.contents import Tensor
from holdfast.ckpt.tensor_blocks import Array, TensorReader, cast_block


class TensorDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How ``elements`` of one tensor differ from those of another.

    ``differ`` of them are not equal (NaN equals NaN), the first at index ``first`` of the flattened
    tensor. ``max_abs`` is the largest |a - b| (infinite if one of the two is NaN), ``relative`` the
    norm of a - b over that of a (0 if both are 0, infinite if only a is).
    """

    elements: int
    differ: int = 0
    first: int | None = None
    max_abs: float = 0.0
    relative: float = 0.0


class _Sums(msgspec.Struct):
    differ: int = 0
    first: int | None = None
    max_abs: float = 0.0
    square: float = 0.0
    of_first: float = 0.0


def compare_tensors(
    mine: TensorReader, a: Tensor, theirs: TensorReader, b: Tensor, *, rounded: bool = False
) -> TensorDifference:
    """Compare ``a`` with ``b`` (same element count); ``rounded`` casts a to b's dtype first.

    Raises:
        CheckpointUnreadable: one of them cannot be read.
    """
    sums = _Sums()
    at = 0
    for x, y in _align_blocks(mine.blocks(a), theirs.blocks(b)):
        _add_block(cast_block(x, b.dtype) if rounded else x, y, at, sums)
        at += len(x)
    relative = (
        math.sqrt(sums.square / sums.of_first)
        if sums.of_first
        else math.inf
        if sums.square
        else 0.0
    )
    return TensorDifference(
        elements=a.numel,
        differ=sums.differ,
        first=sums.first,
        max_abs=sums.max_abs,
        relative=relative if math.isfinite(sums.max_abs) else math.inf,
    )


def _align_blocks(first: Iterator[Array], second: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """Yield the blocks of both, cut to equal lengths."""
    x, y = next(first, None), next(second, None)
    while x is not None and y is not None:
        size = min(len(x), len(y))
        yield x[:size], y[:size]
        x = x[size:] if size < len(x) else next(first, None)
        y = y[size:] if size < len(y) else next(second, None)


def _add_block(x: Array, y: Array, at: int, sums: _Sums) -> None:
    if x.dtype == y.dtype and np.array_equal(x.view(np.uint8), y.view(np.uint8)):
        narrow = x if x.dtype == np.float32 else _widen(x)
        with np.errstate(all="ignore"):
            sums.of_first += float(np.vdot(narrow, narrow).real)
        return
    a, b = _widen(x), _widen(y)
    with np.errstate(all="ignore"):
        differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
        count = int(np.count_nonzero(differs))
        if count:
            sums.first = at + int(differs.argmax()) if sums.first is None else sums.first
            apart = np.abs(a[differs] - b[differs])
            sums.max_abs = max(
                sums.max_abs, math.inf if np.isnan(apart).any() else float(apart.max())
            )
            sums.square += float(np.square(apart).sum())
        sums.differ += count
        sums.of_first += float(np.square(np.abs(a)).sum())


def _widen(block: Array) -> Any:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)
