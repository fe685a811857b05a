"""Shards embedded as torch.save files: one preamble is parsed once, differences are noticed."""

import io

import numpy as np
import pytest
import torch

from holdfast.ckpt import tensor_blocks
from holdfast.ckpt.contents import Tensor, TensorShard
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable


def packed(folder, tensors):
    """Return a file that contains all of them in sequence."""
    found, data = [], b""
    for at, each in enumerate(tensors):
        stream = io.BytesIO()
        torch.save(each, stream)
        size = len(stream.getvalue())
        shard = TensorShard(
            file="f",
            offset=len(data),
            shape=tuple(each.shape),
            start=(0,) * each.dim(),
            packed=size,
        )
        found.append(
            Tensor(name=f"t{at}", dtype="float32", shape=tuple(each.shape), shards=(shard,))
        )
        data += stream.getvalue()
    (folder / "f").write_bytes(data)
    return found


def test_equal_preambles_are_parsed_once(tmp_path, monkeypatch):
    tensors = [torch.randn(5, 7) for _ in range(20)] + [torch.randn(7, 5).T, torch.randn(3)]
    found = packed(tmp_path, tensors)
    opened = []
    window = tensor_blocks.read_embedded_file
    monkeypatch.setattr(
        tensor_blocks,
        "read_embedded_file",
        lambda *arguments: opened.append(arguments) or window(*arguments),
    )
    with TensorReader(tmp_path) as reader:
        for each, expected in zip(found, tensors, strict=True):
            assert np.array_equal(reader.read_tensor(each), expected.numpy())
    assert len(opened) == 3


def test_equal_size_is_not_enough(tmp_path):
    one, two = packed(tmp_path, [torch.randn(5, 7) for _ in range(2)])
    with (tmp_path / "f").open("r+b") as stream:
        stream.seek(two.shards[0].offset)
        stream.write(b"nonsense")
    with TensorReader(tmp_path) as reader:
        reader.read_tensor(one)
        with pytest.raises(CheckpointUnreadable):
            reader.read_tensor(two)
