"""Two tensors held against each other, number by number and block by block, wherever each of them stands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from holdfast.facts.checkpoints.contents import Tensor
from holdfast.facts.checkpoints.pieces import Array, Reader, cast


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How ``elements`` of one tensor differ from those of another.

    ``differ`` of them are not the same number (NaN is the same as NaN), the first at index ``first`` of the flattened
    tensor. ``max_abs`` is the largest |a - b| (infinite where one of the two is no number), ``relative`` the norm of
    a - b over that of a (0 where both are 0, infinite where only a is).
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


def compare(mine: Reader, a: Tensor, theirs: Reader, b: Tensor, *, rounded: bool = False) -> Difference:
    """``a`` against ``b``, which has as many elements. ``rounded``: a is first brought to the dtype of b.

    Raises:
        CheckpointUnreadable: one of them cannot be read.
    """
    sums = _Sums()
    at = 0
    for x, y in _paired(mine.blocks(a), theirs.blocks(b)):
        _hold(cast(x, b.dtype) if rounded else x, y, at, sums)
        at += len(x)
    relative = math.sqrt(sums.square / sums.of_first) if sums.of_first else math.inf if sums.square else 0.0
    return Difference(
        elements=a.numel, differ=sums.differ, first=sums.first, max_abs=sums.max_abs,
        relative=relative if math.isfinite(sums.max_abs) else math.inf,
    )  # fmt: skip


def _paired(first: Iterator[Array], second: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """The blocks of both, cut so that they go together."""
    x, y = next(first, None), next(second, None)
    while x is not None and y is not None:
        size = min(len(x), len(y))
        yield x[:size], y[:size]
        x = x[size:] if size < len(x) else next(first, None)
        y = y[size:] if size < len(y) else next(second, None)


def _hold(x: Array, y: Array, at: int, sums: _Sums) -> None:
    if x.dtype == y.dtype and np.array_equal(x.view(np.uint8), y.view(np.uint8)):
        narrow = x if x.dtype == np.float32 else _wide(x)
        with np.errstate(all="ignore"):
            sums.of_first += float(np.vdot(narrow, narrow).real)
        return
    a, b = _wide(x), _wide(y)
    with np.errstate(all="ignore"):
        differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
        count = int(np.count_nonzero(differs))
        if count:
            sums.first = at + int(differs.argmax()) if sums.first is None else sums.first
            apart = np.abs(a[differs] - b[differs])
            sums.max_abs = max(sums.max_abs, math.inf if np.isnan(apart).any() else float(apart.max()))
            sums.square += float(np.square(apart).sum())
        sums.differ += count
        sums.of_first += float(np.square(np.abs(a)).sum())


def _wide(block: Array) -> Any:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)
