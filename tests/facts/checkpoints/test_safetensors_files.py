"""safetensors, written by its own library, read without it."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file, save_model

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.files import safetensors_files
from tests.facts.checkpoints.truth import same_tensors
from tests.saved.model import model


def written(path, header, numbers=b"", length=None):
    """A file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + numbers)
    return path


def entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_model_with_tied_weights(tmp_path):
    module = model()
    save_model(module, str(tmp_path / "a.safetensors"), metadata={"author": "us"})
    found = safetensors_files.read(tmp_path / "a.safetensors")
    same_tensors(found, module.state_dict())
    assert found.ties == {"head.weight": "embed.weight"}
    assert (found.format, found.values, found.gaps) == (Format.SAFETENSORS, {"author": "us"}, ())


DTYPES = [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int16, torch.uint8, torch.bool,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path, dtype):
    value = {"w": torch.arange(6).reshape(2, 3).to(dtype), "none": torch.empty(0, 2, dtype=dtype)}
    save_file(value, tmp_path / "a.safetensors")
    same_tensors(safetensors_files.read(tmp_path / "a.safetensors"), value)


def test_whether_the_order_of_the_model_is_kept_is_seen(tmp_path):
    save_file({"b": torch.ones(1), "a": torch.ones(1)}, tmp_path / "a.safetensors")
    assert not safetensors_files.read_file(tmp_path / "a.safetensors", "").ordered
    path = written(tmp_path / "b", {"b": entry([1], [0, 4]), "a": entry([1], [4, 8])}, bytes(8))
    assert safetensors_files.read_file(path, "").ordered


def test_a_truncated_file_names_what_is_cut(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(4)}, path)
    os.truncate(path, path.stat().st_size - 20)
    found = safetensors_files.read(path)
    assert [(gap.kind, gap.why) for gap in found.gaps] == [("truncated", "it is cut short: 2 tensors of it: a, b")]


@pytest.mark.parametrize(
    ("header", "length", "why"),
    [
        (b"{}", 1 << 40, "does not begin with the length"),
        (b"{}", 90_000_000, "cut short within its header"),
        (b"{", None, "header cannot be read"),
        (b'{"a": 1}', None, "header cannot be read"),
        (b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}', None, "header cannot be read"),
        (b"[" * 5000, None, "header cannot be read"),
        (b"\xff\xff", None, "header cannot be read"),
    ],
)
def test_a_header_that_is_none_is_one_clear_sentence(tmp_path, header, length, why):
    path = written(tmp_path / "a.safetensors", header, length=length)
    assert safetensors_files.recognises(path) is Format.SAFETENSORS
    with pytest.raises(CheckpointUnreadable, match=why):
        safetensors_files.read(path)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (entry([2], [0, 4]), "its shape and its 4 bytes do not agree"),
        (entry([-1], [0, -4]), "its place in the file cannot be"),
        (entry([1], [-4, 0]), "its place in the file cannot be"),
        (entry([2], [0, 1], "F4"), "it is of F4, which is not known here"),
    ],
)
def test_a_tensor_that_cannot_be_is_a_gap(tmp_path, found, why):
    contents = safetensors_files.read(written(tmp_path / "a", {"w": found, "v": entry([1], [0, 4])}, bytes(4)))
    assert set(contents.tensors) == {"v"}
    assert [gap.why for gap in contents.gaps] == [f"w: {why}"]


def test_other_files_are_not_taken_for_one(tmp_path):
    for content in (b"", b"{}", b"PK\x03\x04" + bytes(20), bytes(8) + b"{}"):
        (tmp_path / "a.bin").write_bytes(content)
        assert safetensors_files.recognises(tmp_path / "a.bin") is None
    assert safetensors_files.recognises(tmp_path) is None
