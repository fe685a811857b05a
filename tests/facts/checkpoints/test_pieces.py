"""The numbers of a tensor come out the same however it is cut into pieces."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Piece, Tensor
from holdfast.facts.checkpoints.pieces import Reader, cast, dtype_of, run_start, runs


@st.composite
def cuts(draw):
    """A shape, and for each dimension where it is cut."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    places = [draw(st.lists(st.integers(1, n), max_size=2, unique=True)) for n in shape]
    return shape, [sorted({0, n, *at}) for n, at in zip(shape, places, strict=True)]


def boxes(file, whole, edges):
    """The tensor in boxes, each as its own bytes one after the other in a file."""
    pieces, data = [], b""
    for corner in itertools.product(*(itertools.pairwise(each) for each in edges)):
        part = whole[tuple(slice(*each) for each in corner)]
        start = tuple(each[0] for each in corner)
        pieces.append(Piece(file=file.name, offset=len(data), shape=part.shape, start=start))
        data += part.tobytes()
    file.write_bytes(data)
    return Tensor(name="t", dtype="int32", shape=whole.shape, pieces=tuple(pieces))


@settings(deadline=None)
@given(cut=cuts(), block=st.integers(4, 64), ends=st.tuples(st.integers(0, 400), st.integers(0, 400)))
def test_boxes_make_the_whole(tmp_path_factory, cut, block, ends):
    shape, edges = cut
    folder = tmp_path_factory.mktemp("boxes")
    whole = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    tensor = boxes(folder / "numbers", whole, edges)
    with Reader(folder, block) as reader:
        assert (reader.whole(tensor) == whole).all()
        start, stop = sorted(min(each, whole.size) for each in ends)
        parts = [part.copy() for part in reader.blocks(tensor, start, stop)]
    assert np.concatenate([np.empty(0, np.int32), *parts]).tolist() == list(range(start, stop))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), order=st.randoms())
def test_flat_pieces_make_the_whole_in_any_order_of_files(tmp_path_factory, sizes, order):
    folder, total = tmp_path_factory.mktemp("flat"), sum(sizes)
    whole = np.arange(total, dtype=np.float32)
    pieces = []
    for index, start in enumerate(itertools.accumulate(sizes[:-1], initial=0)):
        (folder / str(index)).write_bytes(b"head" + whole[start : start + sizes[index]].tobytes())
        pieces.append(Piece(file=str(index), offset=4, shape=(sizes[index],), start=(start,), flat=True))
    order.shuffle(pieces)
    tensor = Tensor(name="t", dtype="float32", shape=(1, total), pieces=tuple(pieces))
    with Reader(folder, 16) as reader:
        assert (reader.whole(tensor)[0] == whole).all()


def test_what_no_piece_covers_is_an_error_that_names_the_tensor(tmp_path):
    (tmp_path / "a").write_bytes(bytes(400))
    first = Piece(file="a", offset=0, shape=(4, 5), start=(0, 0))
    gap = Piece(file="a", offset=0, shape=(4, 5), start=(6, 0))
    for pieces in ((first,), (first, gap), (gap,), ()):
        tensor = Tensor(name="layer.weight", dtype="float32", shape=(10, 5), pieces=pieces)
        with Reader(tmp_path) as reader, pytest.raises(CheckpointUnreadable, match=r"layer\.weight are in none"):
            reader.whole(tensor)
    columns = Piece(file="a", offset=0, shape=(10, 2), start=(0, 0))
    tensor = Tensor(name="layer.weight", dtype="float32", shape=(10, 5), pieces=(columns,))
    with Reader(tmp_path) as reader, pytest.raises(CheckpointUnreadable, match=r"layer\.weight are in none"):
        reader.whole(tensor)


def test_a_file_that_is_cut_short_or_gone_is_an_error_that_names_it(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    piece = Piece(file="a", offset=0, shape=(5,), start=(0,))
    tensor = Tensor(name="t", dtype="float32", shape=(5,), pieces=(piece,))
    with Reader(tmp_path) as reader, pytest.raises(CheckpointUnreadable, match="cut short"):
        reader.whole(tensor)
    (tmp_path / "a").unlink()
    with Reader(tmp_path) as reader, pytest.raises(CheckpointUnreadable, match="no such file"):
        reader.whole(tensor)


def test_rows_are_a_run_and_columns_are_none():
    def box(start, shape):
        return Piece(file="", offset=0, shape=shape, start=start)

    assert run_start((4, 6), box((2, 0), (2, 6))) == 12
    assert run_start((4, 6), box((2, 3), (1, 3))) == 15
    assert run_start((4, 6), box((2, 3), (2, 3))) is None
    assert run_start((), box((), ())) == 0
    tensor = Tensor(name="t", dtype="int8", shape=(4, 6), pieces=(box((2, 0), (2, 6)), box((0, 0), (2, 6))))
    assert [each[:2] for each in runs(tensor)] == [(0, 12), (12, 24)]


@pytest.mark.parametrize("into", ["bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_are_rounded_as_torch_rounds(into):
    bits = torch.randint(-(2**31), 2**31 - 1, (200_000,), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    numbers = torch.cat([bits.view(torch.float32), torch.randn(200_000) * 100, torch.tensor([0.0, -0.0, 448.0, 1e-8])])
    numbers = numbers[numbers.isfinite()]
    wanted = numbers.to(getattr(torch, into)).view(torch.uint8).numpy().tobytes()
    assert cast(numbers.numpy(), into).tobytes() == wanted
    assert cast(numbers.numpy(), "float32") is not None
    assert dtype_of(into).itemsize == getattr(torch, into).itemsize
