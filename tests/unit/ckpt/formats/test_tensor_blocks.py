"""Tensor values are independent of how the tensor is split into shards."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ckpt.contents import Tensor, TensorShard
from holdfast.ckpt.tensor_blocks import (
    TensorReader,
    cast_block,
    contiguous_runs,
    numpy_dtype,
    run_start,
)
from holdfast.core.errors import CheckpointUnreadable


@st.composite
def cuts(draw):
    """Draw a shape and cut positions per dimension."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    places = [draw(st.lists(st.integers(1, n), max_size=2, unique=True)) for n in shape]
    return shape, [sorted({0, n, *at}) for n, at in zip(shape, places, strict=True)]


def blocks(file, whole, edges):
    """Store the tensor as rectangular blocks in sequence in a file."""
    shards, data = [], b""
    for corner in itertools.product(*(itertools.pairwise(each) for each in edges)):
        part = whole[tuple(slice(*each) for each in corner)]
        start = tuple(each[0] for each in corner)
        shards.append(TensorShard(file=file.name, offset=len(data), shape=part.shape, start=start))
        data += part.tobytes()
    file.write_bytes(data)
    return Tensor(name="t", dtype="int32", shape=whole.shape, shards=tuple(shards))


@given(
    cut=cuts(), block=st.integers(4, 64), ends=st.tuples(st.integers(0, 400), st.integers(0, 400))
)
def test_boxes_reassemble(tmp_path_factory, cut, block, ends):
    shape, edges = cut
    folder = tmp_path_factory.mktemp("boxes")
    whole = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    tensor = blocks(folder / "numbers", whole, edges)
    with TensorReader(folder, block) as reader:
        assert (reader.read_tensor(tensor) == whole).all()
        start, stop = sorted(min(each, whole.size) for each in ends)
        parts = [part.copy() for part in reader.blocks(tensor, start, stop)]
    assert np.concatenate([np.empty(0, np.int32), *parts]).tolist() == list(range(start, stop))


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), order=st.randoms())
def test_flat_shards_reassemble_in_any_file_order(tmp_path_factory, sizes, order):
    folder, total = tmp_path_factory.mktemp("flat"), sum(sizes)
    whole = np.arange(total, dtype=np.float32)
    shards = []
    for index, start in enumerate(itertools.accumulate(sizes[:-1], initial=0)):
        (folder / str(index)).write_bytes(b"head" + whole[start : start + sizes[index]].tobytes())
        shards.append(
            TensorShard(file=str(index), offset=4, shape=(sizes[index],), start=(start,), flat=True)
        )
    order.shuffle(shards)
    tensor = Tensor(name="t", dtype="float32", shape=(1, total), shards=tuple(shards))
    with TensorReader(folder, 16) as reader:
        assert (reader.read_tensor(tensor)[0] == whole).all()


def test_uncovered_elements_are_an_error(tmp_path):
    (tmp_path / "a").write_bytes(bytes(400))
    first = TensorShard(file="a", offset=0, shape=(4, 5), start=(0, 0))
    problem = TensorShard(file="a", offset=0, shape=(4, 5), start=(6, 0))
    for shards in ((first,), (first, problem), (problem,), ()):
        tensor = Tensor(name="layer.weight", dtype="float32", shape=(10, 5), shards=shards)
        with (
            TensorReader(tmp_path) as reader,
            pytest.raises(CheckpointUnreadable, match=r"layer\.weight are missing"),
        ):
            reader.read_tensor(tensor)
    columns = TensorShard(file="a", offset=0, shape=(10, 2), start=(0, 0))
    tensor = Tensor(name="layer.weight", dtype="float32", shape=(10, 5), shards=(columns,))
    with (
        TensorReader(tmp_path) as reader,
        pytest.raises(CheckpointUnreadable, match=r"layer\.weight are missing"),
    ):
        reader.read_tensor(tensor)


def test_truncated_or_missing_file_is_an_error(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    shard = TensorShard(file="a", offset=0, shape=(5,), start=(0,))
    tensor = Tensor(name="t", dtype="float32", shape=(5,), shards=(shard,))
    with TensorReader(tmp_path) as reader, pytest.raises(CheckpointUnreadable, match="truncated"):
        reader.read_tensor(tensor)
    (tmp_path / "a").unlink()
    with (
        TensorReader(tmp_path) as reader,
        pytest.raises(CheckpointUnreadable, match="no such file"),
    ):
        reader.read_tensor(tensor)


def test_rows_are_contiguous_and_columns_are_not():
    def block(start, shape):
        return TensorShard(file="", offset=0, shape=shape, start=start)

    assert run_start((4, 6), block((2, 0), (2, 6))) == 12
    assert run_start((4, 6), block((2, 3), (1, 3))) == 15
    assert run_start((4, 6), block((2, 3), (2, 3))) is None
    assert run_start((), block((), ())) == 0
    tensor = Tensor(
        name="t", dtype="int8", shape=(4, 6), shards=(block((2, 0), (2, 6)), block((0, 0), (2, 6)))
    )
    assert [each[:2] for each in contiguous_runs(tensor)] == [(0, 12), (12, 24)]


@pytest.mark.parametrize("into", ["bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_cast_rounds_like_torch(into):
    bits = torch.randint(
        -(2**31),
        2**31 - 1,
        (200_000,),
        dtype=torch.int32,
        generator=torch.Generator().manual_seed(3),
    )
    numbers = torch.cat(
        [
            bits.view(torch.float32),
            torch.randn(200_000) * 100,
            torch.tensor([0.0, -0.0, 448.0, 1e-8]),
        ]
    )
    numbers = numbers[numbers.isfinite()]
    expected = numbers.to(getattr(torch, into)).view(torch.uint8).numpy().tobytes()
    assert cast_block(numbers.numpy(), into).tobytes() == expected
    assert cast_block(numbers.numpy(), "float32") is not None
    assert numpy_dtype(into).itemsize == getattr(torch, into).itemsize
