"""torch.save files: real tensors are located exactly, other files are refused."""

import zipfile
from argparse import Namespace
from collections import OrderedDict

import pytest
import torch

from holdfast.ckpt.files import torch_files
from holdfast.ckpt.tensor_blocks import TensorReader, numpy_dtype
from holdfast.core.errors import CheckpointUnreadable

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def numbers(shape, dtype):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 5).to(dtype)


WHOLE = torch.randn(30, 7)
TENSORS = {
    **{str(dtype).removeprefix("torch."): numbers((3, 5), dtype) for dtype in DTYPES},
    "none": torch.empty(0, 3),
    "one": torch.tensor(3.5),
    "transposed": WHOLE.t(),
    "part": WHOLE[10:20, 3:5],
    "tied": WHOLE,
    "parameter": torch.nn.Parameter(WHOLE),
    "repeated": torch.tensor([1.0]).expand(4, 2),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "model.pt"
    torch.save(
        {"model": OrderedDict(TENSORS), "args": Namespace(lr=1), "dtype": torch.float32}, path
    )
    return path


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_is_read_exactly(file, name):
    found, truth = torch_files.read_torch_file(file), TENSORS[name].detach()
    tensor = found.tensor(name, found.value["model"][name], "")
    with TensorReader(file, block=64) as reader:
        read = reader.read_tensor(tensor)
    assert (tensor.dtype, tensor.shape) == (
        str(truth.dtype).removeprefix("torch."),
        tuple(truth.shape),
    )
    assert read.dtype == numpy_dtype(tensor.dtype)
    assert read.tobytes() == bytes(truth.contiguous().clone().untyped_storage())


def test_parameters_are_distinguished(file):
    found = torch_files.read_torch_file(file).value["model"]
    assert found["parameter"].requires_grad
    assert not found["tied"].requires_grad
    assert found["parameter"].storage == found["tied"].storage


def test_non_tensors_become_text(file):
    assert (
        torch_files.to_plain(torch_files.read_torch_file(file).value)["args"]
        == "<argparse.Namespace>"
    )
    itself = []
    itself.append(itself)
    assert "<nested too deeply>" in str(torch_files.to_plain(itself))


def archive(path, records, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records:
            archive.writestr(f"archive/{name}", data)


def refused(path):
    with pytest.raises(CheckpointUnreadable) as raised:
        torch_files.read_torch_file(path)
    assert "\n" not in str(raised.value)
    return raised.value.why


EMPTY = b"\x80\x02}."


def test_invalid_files_are_refused(file, tmp_path):
    path = tmp_path / "bad.pt"
    path.write_bytes(file.read_bytes()[:-40])
    assert "truncated" in refused(path)
    archive(path, [("words.txt", b"x")])
    assert "data.pkl" in refused(path)
    archive(path, [("data.pkl", EMPTY * 50)], zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(path)
    archive(path, [("data.pkl", EMPTY), ("byteorder", b"big")])
    assert "big-endian" in refused(path)
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(path, [("data.pkl", EMPTY), ("data/0", b"1"), ("data/0", b"2")])
    assert "twice" in refused(path)
    path.write_bytes(b"")
    assert refused(path)
    assert "no such file" in refused(tmp_path / "missing.pt")


def test_out_of_bounds_tensors_are_refused(tmp_path):
    path = tmp_path / "short.pt"
    torch.save({"a": torch.ones(100)}, path)
    with zipfile.ZipFile(path) as archive_file:
        described = archive_file.read("short/data.pkl")
    archive(path, [("data.pkl", described), ("data/0", b"1234"), ("byteorder", b"little")])
    found = torch_files.read_torch_file(path)
    with pytest.raises(CheckpointUnreadable, match="extends beyond the record"):
        found.tensor("a", found.value["a"], "")
    archive(path, [("data.pkl", described)])
    found = torch_files.read_torch_file(path)
    with pytest.raises(CheckpointUnreadable, match="lacks the record"):
        found.tensor("a", found.value["a"], "")
