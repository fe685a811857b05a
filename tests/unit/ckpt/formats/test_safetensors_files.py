"""safetensors files, written by their own library and read without it."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file, save_model

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.files import safetensors_files
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.model import model
from tests.unit.ckpt.formats.truth import same_tensors


def written(path, header, numbers=b"", length=None):
    """Write a file by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(
        (len(text) if length is None else length).to_bytes(8, "little") + text + numbers
    )
    return path


def entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tied_weights(tmp_path):
    module = model()
    save_model(module, str(tmp_path / "a.safetensors"), metadata={"author": "us"})
    found = safetensors_files.read_contents(tmp_path / "a.safetensors")
    same_tensors(found, module.state_dict())
    assert found.ties == {"head.weight": "embed.weight"}
    assert (found.format, found.values, found.problems) == (
        CheckpointFormat.SAFETENSORS,
        {"author": "us"},
        (),
    )


DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.uint16,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path, dtype):
    value = {"w": torch.arange(6).reshape(2, 3).to(dtype), "none": torch.empty(0, 2, dtype=dtype)}
    save_file(value, tmp_path / "a.safetensors")
    same_tensors(safetensors_files.read_contents(tmp_path / "a.safetensors"), value)


def test_model_order_is_detected(tmp_path):
    save_file({"b": torch.ones(1), "a": torch.ones(1)}, tmp_path / "a.safetensors")
    assert not safetensors_files.read_file(tmp_path / "a.safetensors", "").ordered
    path = written(tmp_path / "b", {"b": entry([1], [0, 4]), "a": entry([1], [4, 8])}, bytes(8))
    assert safetensors_files.read_file(path, "").ordered


def test_truncated_file_lists_missing_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(4)}, path)
    os.truncate(path, path.stat().st_size - 20)
    found = safetensors_files.read_contents(path)
    assert [(problem.kind, problem.why) for problem in found.problems] == [
        ("truncated", "it is truncated: 2 tensors missing: a, b")
    ]


@pytest.mark.parametrize(
    ("header", "length", "why"),
    [
        (b"{}", 1 << 40, "does not begin with the length"),
        (b"{}", 90_000_000, "truncated within its header"),
        (b"{", None, "invalid header"),
        (b'{"a": 1}', None, "invalid header"),
        (
            b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
            None,
            "invalid header",
        ),
        (b"[" * 5000, None, "invalid header"),
        (b"\xff\xff", None, "invalid header"),
    ],
)
def test_invalid_header_is_an_error(tmp_path, header, length, why):
    path = written(tmp_path / "a.safetensors", header, length=length)
    assert safetensors_files.detect_format(path) is CheckpointFormat.SAFETENSORS
    with pytest.raises(CheckpointUnreadable, match=why):
        safetensors_files.read_contents(path)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (entry([2], [0, 4]), "its shape does not match its 4 bytes"),
        (entry([-1], [0, -4]), "invalid offset or shape"),
        (entry([1], [-4, 0]), "invalid offset or shape"),
        (entry([2], [0, 1], "F4"), "unsupported dtype F4"),
    ],
)
def test_invalid_entry_is_reported(tmp_path, found, why):
    contents = safetensors_files.read_contents(
        written(tmp_path / "a", {"w": found, "v": entry([1], [0, 4])}, bytes(4))
    )
    assert set(contents.tensors) == {"v"}
    assert [problem.why for problem in contents.problems] == [f"w: {why}"]


def test_other_files_are_not_recognized(tmp_path):
    for content in (b"", b"{}", b"PK\x03\x04" + bytes(20), bytes(8) + b"{}"):
        (tmp_path / "a.bin").write_bytes(content)
        assert safetensors_files.detect_format(tmp_path / "a.bin") is None
    assert safetensors_files.detect_format(tmp_path) is None
