"""Shards that torch writes for Hugging Face, read without torch."""

import json
import struct

import numpy as np
import pytest

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.distributed import hf_shards
from holdfast.facts.checkpoints.pieces import Reader
from tests.facts.checkpoints.truth import same_tensors, truth_of
from tests.saved.making import made, shared_store


def shard(folder, number, tensors):
    """One file: of each tensor its first index and its rows."""
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
def test_what_torch_writes_is_read_bit_by_bit(tmp_path_factory):
    store = shared_store(tmp_path_factory)
    folder = made(store, "huggingface-untied", "torch_distributed", "huggingface", "--untied", ranks=2)
    found = formats.read(folder / "saved")
    same_tensors(found, truth_of(folder)["model"])
    assert (found.format, found.world_size, found.gaps) == (Format.HUGGINGFACE, 2, ())


def test_parts_are_put_together_and_a_missing_shard_is_a_gap(tmp_path):
    shard(tmp_path, 1, {"w": ((0, 0), [[1, 2], [3, 4]]), "scale": ((), 5)})
    second = shard(tmp_path, 2, {"w": ((2, 0), [[5, 6]])})
    shard(tmp_path, 3, {"w": ((3, 0), [[7, 8]])})
    assert hf_shards.recognises(tmp_path) is Format.HUGGINGFACE
    found = hf_shards.read(tmp_path)
    with Reader(tmp_path) as reader:
        assert reader.whole(found.tensors["w"]).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
        assert reader.whole(found.tensors["scale"]) == 5
    assert "not known" in found.notes[0]
    second.unlink()
    missing, uncovered = hf_shards.read(tmp_path).gaps
    assert (missing.kind, missing.rank) == ("missing", 1)
    assert (uncovered.kind, "w do not cover it" in uncovered.why) == ("mixed", True)


def test_a_truncated_shard_is_a_gap_and_none_at_all_an_error(tmp_path):
    first = shard(tmp_path, 1, {"w": ((0,), [1, 2])})
    second = shard(tmp_path, 2, {"w": ((2,), [3, 4])})
    second.write_bytes(second.read_bytes()[:-4])
    (gap,) = hf_shards.read(tmp_path).gaps
    assert (gap.file, gap.rank) == (second.name, 1)
    first.write_bytes(b"")
    second.write_bytes(b"")
    with pytest.raises(CheckpointUnreadable):
        hf_shards.read(tmp_path)


def test_parts_that_do_not_fit_together_are_told(tmp_path):
    shard(tmp_path, 1, {"w": ((0,), [1, 2])})
    shard(tmp_path, 2, {"w": ((2, 0), [[3, 4]])})
    (gap,) = hf_shards.read(tmp_path).gaps
    assert gap.kind == "mixed"
    for start in (-2, 3, 1 << 60):
        shard(tmp_path, 2, {"w": ((start,), [3, 4])})
        assert hf_shards.read(tmp_path).gaps
