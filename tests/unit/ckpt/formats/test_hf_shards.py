"""Shards that torch writes for Hugging Face, read without torch."""

import json
import struct

import numpy as np
import pytest

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.distributed import hf_shards
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.making import made, shared_store
from tests.unit.ckpt.formats.truth import same_tensors, truth_of


def shard(folder, number, tensors):
    """Write one file: start index and rows of each tensor."""
    header, data, offsets = {}, b"", {}
    for name, (start, rows) in tensors.items():
        array = np.asarray(rows, "<f4")
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
        offsets[name] = {"saved_offsets": list(start)}
    header["__metadata__"] = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(offsets)}
    text = json.dumps(header).encode()
    path = folder / f"shard-{number:05d}-model-00001-of-00001.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.slow
def test_torch_shards_are_bit_identical(tmp_path_factory):
    store = shared_store(tmp_path_factory)
    folder = made(store, "torch_distributed", "huggingface", "--untied", ranks=2)
    found = registry.read_checkpoint(folder / "saved")
    same_tensors(found, truth_of(folder)["model"])
    assert (found.format, found.world_size, found.problems) == (CheckpointFormat.HUGGINGFACE, 2, ())


def test_missing_shard_is_reported(tmp_path):
    shard(tmp_path, 1, {"w": ((0, 0), [[1, 2], [3, 4]]), "scale": ((), 5)})
    second = shard(tmp_path, 2, {"w": ((2, 0), [[5, 6]])})
    shard(tmp_path, 3, {"w": ((3, 0), [[7, 8]])})
    assert hf_shards.detect_format(tmp_path) is CheckpointFormat.HUGGINGFACE
    found = hf_shards.read_contents(tmp_path)
    with TensorReader(tmp_path) as reader:
        assert reader.read_tensor(found.tensors["w"]).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
        assert reader.read_tensor(found.tensors["scale"]) == 5
    assert "cannot be detected" in found.notes[0]
    second.unlink()
    missing, uncovered = hf_shards.read_contents(tmp_path).problems
    assert (missing.kind, missing.rank) == ("missing", 1)
    assert (uncovered.kind, "w do not cover it" in uncovered.why) == ("mixed", True)


def test_truncated_and_absent_shards(tmp_path):
    first = shard(tmp_path, 1, {"w": ((0,), [1, 2])})
    second = shard(tmp_path, 2, {"w": ((2,), [3, 4])})
    second.write_bytes(second.read_bytes()[:-4])
    (problem,) = hf_shards.read_contents(tmp_path).problems
    assert (problem.file, problem.rank) == (second.name, 1)
    first.write_bytes(b"")
    second.write_bytes(b"")
    with pytest.raises(CheckpointUnreadable):
        hf_shards.read_contents(tmp_path)


def test_inconsistent_parts_are_reported(tmp_path):
    shard(tmp_path, 1, {"w": ((0,), [1, 2])})
    shard(tmp_path, 2, {"w": ((2, 0), [[3, 4]])})
    (problem,) = hf_shards.read_contents(tmp_path).problems
    assert problem.kind == "mixed"
    for start in (-2, 3, 1 << 60):
        shard(tmp_path, 2, {"w": ((start,), [3, 4])})
        assert hf_shards.read_contents(tmp_path).problems
