"""NaN, infinities and zeros are counted in every dtype, for any chunking of the bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from holdfast.ckpt.contents import ITEMSIZE
from holdfast.ckpt.tensor_blocks import numpy_dtype
from holdfast.ckpt.verify.values import ValueCounter, ValueCounts

FLOATS = [name for name in ITEMSIZE if "float" in name or "complex" in name]


def counted(values, dtype, portion=1 << 20):
    counter = ValueCounter(dtype)
    data = memoryview(np.asarray(values, numpy_dtype(dtype)).tobytes())
    for at in range(0, len(data), portion):
        counter.update(data[at : at + portion])
    counter.counts.squares = counter.counts.sampled = 0
    return counter.counts


@pytest.mark.parametrize("dtype", FLOATS)
def test_counts_agree_with_numpy(dtype):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 256, 4096 * ITEMSIZE[dtype], np.uint8).tobytes()
    values = np.frombuffer(bits, numpy_dtype(dtype))
    counter = ValueCounter(dtype)
    counter.update(memoryview(bits))
    parts = (
        values.view(numpy_dtype({8: "float32", 16: "float64"}[values.itemsize]))
        if "complex" in dtype
        else values
    )
    with np.errstate(invalid="ignore"):
        plain = parts.astype(np.float64)
    assert counter.counts.elements == 4096
    assert counter.counts.nan == np.isnan(plain).sum()
    assert counter.counts.inf == np.isinf(plain).sum()
    assert counter.counts.other


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "int8", "bool"])
def test_all_zero(dtype):
    if dtype != "float8_e8m0fnu":  # has no zero
        assert counted([0] * 70_000, dtype).all_zero
        assert not counted([0] * 70_000 + [1], dtype).all_zero
    assert not counted([], dtype).all_zero


@pytest.mark.parametrize("portion", [1, 3, 5, 7, 64])
def test_elements_split_between_chunks(portion):
    values = [0, float("nan"), 1.5, float("inf"), -float("inf"), 0]
    assert counted(values, "float32", portion) == ValueCounts(6, 1, 2, other=True)
    assert counted(values, "bfloat16", portion) == ValueCounts(6, 1, 2, other=True)


def test_mask_of_infinities_and_zeros():
    found = counted([0, -float("inf"), 0], "float16")
    assert found == ValueCounts(3, 0, 1, other=False)
    assert not found.all_zero


def test_negative_zero_and_largest_number():
    assert counted([-0.0, 0.0], "float32").all_zero
    largest = ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max
    assert counted([largest], "float8_e4m3fn") == ValueCounts(1, 0, 0, other=True)
