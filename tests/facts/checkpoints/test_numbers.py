"""NaN, infinities and zeros are counted in every dtype, however its bytes are portioned."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from holdfast.facts.checkpoints.contents import ITEMSIZE
from holdfast.facts.checkpoints.examining.numbers import Counter, Counts
from holdfast.facts.checkpoints.pieces import dtype_of

FLOATS = [name for name in ITEMSIZE if "float" in name or "complex" in name]


def counted(values, dtype, portion=1 << 20):
    counter = Counter(dtype)
    data = memoryview(np.asarray(values, dtype_of(dtype)).tobytes())
    for at in range(0, len(data), portion):
        counter.update(data[at : at + portion])
    return counter.counts


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_numpy_says_of_a_number_is_said_here(dtype):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 256, 4096 * ITEMSIZE[dtype], np.uint8).tobytes()
    values = np.frombuffer(bits, dtype_of(dtype))
    counter = Counter(dtype)
    counter.update(memoryview(bits))
    parts = values.view(dtype_of({8: "float32", 16: "float64"}[values.itemsize])) if "complex" in dtype else values
    with np.errstate(invalid="ignore"):
        plain = parts.astype(np.float64)
    assert counter.counts.elements == 4096
    assert counter.counts.nan == np.isnan(plain).sum()
    assert counter.counts.inf == np.isinf(plain).sum()
    assert counter.counts.other


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "int8", "bool"])
def test_nothing_but_zeros_is_told(dtype):
    if dtype != "float8_e8m0fnu":  # which has no zero
        assert counted([0] * 70_000, dtype).all_zero
        assert not counted([0] * 70_000 + [1], dtype).all_zero
    assert not counted([], dtype).all_zero


@pytest.mark.parametrize("portion", [1, 3, 5, 7, 64])
def test_numbers_may_be_cut_anywhere(portion):
    values = [0, float("nan"), 1.5, float("inf"), -float("inf"), 0]
    assert counted(values, "float32", portion) == Counts(6, 1, 2, other=True)
    assert counted(values, "bfloat16", portion) == Counts(6, 1, 2, other=True)


def test_a_mask_of_infinities_and_zeros_holds_no_other_number():
    found = counted([0, -float("inf"), 0], "float16")
    assert found == Counts(3, 0, 1, other=False)
    assert not found.all_zero


def test_negative_zero_is_zero_and_the_largest_number_is_one():
    assert counted([-0.0, 0.0], "float32").all_zero
    largest = ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max
    assert counted([largest], "float8_e4m3fn") == Counts(1, 0, 0, other=True)
