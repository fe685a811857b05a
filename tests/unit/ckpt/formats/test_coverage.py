"""Coverage of tensors by shards; the grid agrees with counting each element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ckpt.contents import Tensor, TensorShard
from holdfast.ckpt.verify.coverage import (
    Coverage,
    measure_coverage,
    overlapping_shards,
    shard_bytes,
)


def box(start, shape, file="a"):
    return TensorShard(file=file, offset=0, shape=tuple(shape), start=tuple(start))


def flat(start, size, file="a"):
    return TensorShard(file=file, offset=0, shape=(size,), start=(start,), flat=True)


def tensor(shape, *shards):
    return Tensor(name="w", dtype="float32", shape=shape, shards=shards)


@pytest.mark.parametrize(
    ("shape", "shards", "expected"),
    [
        ((4, 3), [box((0, 0), (4, 3))], Coverage()),
        ((), [box((), ())], Coverage()),
        ((0, 3), [], Coverage()),
        ((), [], Coverage(1)),
        ((4, 3), [box((0, 0), (2, 3)), box((2, 0), (2, 3))], Coverage()),
        ((4, 3), [box((0, 0), (2, 3))], Coverage(6)),
        ((4, 3), [box((0, 0), (4, 1)), box((0, 2), (4, 1))], Coverage(4)),
        ((4, 3), [box((0, 0), (4, 2)), box((0, 1), (4, 2))], Coverage(0, (), 4)),
        ((4, 3), [flat(0, 5), flat(5, 7)], Coverage()),
        ((4, 3), [flat(0, 5), flat(7, 5)], Coverage(2)),
        ((4, 3), [flat(0, 8), flat(4, 8)], Coverage(0, (), 4)),
        ((4, 3), [flat(0, 5), box((2, 0), (2, 3))], Coverage(1)),
    ],
    ids=str,
)
def test_missing_and_duplicate_elements(shape, shards, expected):
    assert measure_coverage(tensor(shape, *shards)) == expected


@pytest.mark.parametrize(
    "shard", [box((3, 0), (2, 3)), flat(10, 5), box((0,), (4,)), box((0, 0), (5, 3))], ids=str
)
def test_shard_out_of_bounds(shard):
    assert measure_coverage(tensor((4, 3), box((0, 0), (4, 3)), shard)).outside == (shard,)


boxes = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@given(boxes)
def test_the_grid_agrees_with_counting(found):
    times = np.zeros((6, 5), int)
    shards = {}
    for row, column, rows, columns in found:
        shape = (min(rows, 6 - row), min(columns, 5 - column))
        shards[(row, column), shape] = box((row, column), shape)
    for (row, column), (rows, columns) in shards:
        if rows and columns:
            times[row : row + rows, column : column + columns] += 1
    coverage = measure_coverage(tensor((6, 5), *shards.values()))
    assert coverage.missing == (times == 0).sum()
    assert bool(coverage.twice) == bool((times > 1).any())


def test_replicas_and_overlapping_runs():
    one, two, three = box((0, 0), (2, 3)), box((0, 0), (2, 3), "b"), box((1, 0), (3, 3), "c")
    assert list(overlapping_shards(tensor((4, 3), one, two, three))) == [(one, two), (one, three)]
    assert list(overlapping_shards(tensor((4, 3), one, box((2, 0), (2, 3))))) == []
    assert measure_coverage(tensor((2, 3), one, two)).twice


def test_shard_bytes():
    assert shard_bytes(box((0, 0), (2, 3)), "float32") == 24
    assert (
        shard_bytes(
            TensorShard(file="", offset=0, shape=(2, 3), start=(0, 0), strides=(1, 2)), "float32"
        )
        == 24
    )
    assert (
        shard_bytes(
            TensorShard(file="", offset=0, shape=(2, 2), start=(0, 0), strides=(5, 2)), "bfloat16"
        )
        == 16
    )
    assert (
        shard_bytes(
            TensorShard(file="", offset=9, shape=(2, 2), start=(0, 0), packed=700), "float32"
        )
        == 700
    )
    assert shard_bytes(box((0, 0), (0, 3)), "float32") == 0
