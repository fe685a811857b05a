"""Pieces that are whole files of torch.save inside of a file: one form is read once, and anything else is noticed."""

import io

import numpy as np
import pytest
import torch

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints import pieces
from holdfast.facts.checkpoints.contents import Piece, Tensor
from holdfast.facts.checkpoints.pieces import Reader


def packed(folder, tensors):
    """The file of all of them, one after the other."""
    found, data = [], b""
    for at, each in enumerate(tensors):
        stream = io.BytesIO()
        torch.save(each, stream)
        size = len(stream.getvalue())
        piece = Piece(file="f", offset=len(data), shape=tuple(each.shape), start=(0,) * each.dim(), packed=size)
        found.append(Tensor(name=f"t{at}", dtype="float32", shape=tuple(each.shape), pieces=(piece,)))
        data += stream.getvalue()
    (folder / "f").write_bytes(data)
    return found


def test_pieces_of_one_form_are_described_once(tmp_path, monkeypatch):
    tensors = [torch.randn(5, 7) for _ in range(20)] + [torch.randn(7, 5).T, torch.randn(3)]
    found = packed(tmp_path, tensors)
    opened = []
    window = pieces.read_window
    monkeypatch.setattr(pieces, "read_window", lambda *given: opened.append(given) or window(*given))
    with Reader(tmp_path) as reader:
        for each, wanted in zip(found, tensors, strict=True):
            assert np.array_equal(reader.whole(each), wanted.numpy())
    assert len(opened) == 3


def test_what_only_has_the_size_of_another_is_not_taken_for_it(tmp_path):
    one, two = packed(tmp_path, [torch.randn(5, 7) for _ in range(2)])
    with (tmp_path / "f").open("r+b") as stream:
        stream.seek(two.pieces[0].offset)
        stream.write(b"nonsense")
    with Reader(tmp_path) as reader:
        reader.whole(one)
        with pytest.raises(CheckpointUnreadable):
            reader.whole(two)
