"""Pieces add up to a tensor or do not; the grid agrees with counting each element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.facts.checkpoints.contents import Piece, Tensor
from holdfast.facts.checkpoints.examining.coverage import Cover, bytes_of, cover, overlaps


def box(start, shape, file="a"):
    return Piece(file=file, offset=0, shape=tuple(shape), start=tuple(start))


def flat(start, size, file="a"):
    return Piece(file=file, offset=0, shape=(size,), start=(start,), flat=True)


def tensor(shape, *pieces):
    return Tensor(name="w", dtype="float32", shape=shape, pieces=pieces)


@pytest.mark.parametrize(
    ("shape", "pieces", "expected"),
    [
        ((4, 3), [box((0, 0), (4, 3))], Cover()),
        ((), [box((), ())], Cover()),
        ((0, 3), [], Cover()),
        ((), [], Cover(1)),
        ((4, 3), [box((0, 0), (2, 3)), box((2, 0), (2, 3))], Cover()),
        ((4, 3), [box((0, 0), (2, 3))], Cover(6)),
        ((4, 3), [box((0, 0), (4, 1)), box((0, 2), (4, 1))], Cover(4)),
        ((4, 3), [box((0, 0), (4, 2)), box((0, 1), (4, 2))], Cover(0, (), 4)),
        ((4, 3), [flat(0, 5), flat(5, 7)], Cover()),
        ((4, 3), [flat(0, 5), flat(7, 5)], Cover(2)),
        ((4, 3), [flat(0, 8), flat(4, 8)], Cover(0, (), 4)),
        ((4, 3), [flat(0, 5), box((2, 0), (2, 3))], Cover(1)),
    ],
    ids=str,
)
def test_what_is_missing_and_what_is_twice(shape, pieces, expected):
    assert cover(tensor(shape, *pieces)) == expected


@pytest.mark.parametrize("piece", [box((3, 0), (2, 3)), flat(10, 5), box((0,), (4,)), box((0, 0), (5, 3))], ids=str)
def test_a_piece_beyond_the_edges(piece):
    assert cover(tensor((4, 3), box((0, 0), (4, 3)), piece)).outside == (piece,)


boxes = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=6
)


@given(boxes)
def test_the_grid_agrees_with_counting(found):
    times = np.zeros((6, 5), int)
    pieces = {}
    for row, column, rows, columns in found:
        shape = (min(rows, 6 - row), min(columns, 5 - column))
        pieces[(row, column), shape] = box((row, column), shape)
    for (row, column), (rows, columns) in pieces:
        if rows and columns:
            times[row : row + rows, column : column + columns] += 1
    said = cover(tensor((6, 5), *pieces.values()))
    assert said.missing == (times == 0).sum()
    assert bool(said.twice) == bool((times > 1).any())


def test_replicas_and_runs_that_overlap_are_pairs():
    one, two, three = box((0, 0), (2, 3)), box((0, 0), (2, 3), "b"), box((1, 0), (3, 3), "c")
    assert list(overlaps(tensor((4, 3), one, two, three))) == [(one, two), (one, three)]
    assert list(overlaps(tensor((4, 3), one, box((2, 0), (2, 3))))) == []
    assert cover(tensor((2, 3), one, two)).twice


def test_the_bytes_of_a_piece():
    assert bytes_of(box((0, 0), (2, 3)), "float32") == 24
    assert bytes_of(Piece(file="", offset=0, shape=(2, 3), start=(0, 0), strides=(1, 2)), "float32") == 24
    assert bytes_of(Piece(file="", offset=0, shape=(2, 2), start=(0, 0), strides=(5, 2)), "bfloat16") == 16
    assert bytes_of(Piece(file="", offset=9, shape=(2, 2), start=(0, 0), packed=700), "float32") == 700
    assert bytes_of(box((0, 0), (0, 3)), "float32") == 0
