"""Files of torch.save: what the real torch wrote is found, number for number, and what is no such file is refused."""

import zipfile
from argparse import Namespace
from collections import OrderedDict

import pytest
import torch

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.pieces import Reader, dtype_of

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def numbers(shape, dtype):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 5).to(dtype)


WHOLE = torch.randn(30, 7)
TENSORS = {
    **{str(dtype).removeprefix("torch."): numbers((3, 5), dtype) for dtype in DTYPES},
    "none": torch.empty(0, 3), "one": torch.tensor(3.5), "transposed": WHOLE.t(), "part": WHOLE[10:20, 3:5],
    "tied": WHOLE, "parameter": torch.nn.Parameter(WHOLE), "repeated": torch.tensor([1.0]).expand(4, 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "model.pt"
    torch.save({"model": OrderedDict(TENSORS), "args": Namespace(lr=1), "dtype": torch.float32}, path)
    return path


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_is_found_number_for_number(file, name):
    found, truth = torch_files.read(file), TENSORS[name].detach()
    tensor = found.tensor(name, found.value["model"][name], "")
    with Reader(file, block=64) as reader:
        read = reader.whole(tensor)
    assert (tensor.dtype, tensor.shape) == (str(truth.dtype).removeprefix("torch."), tuple(truth.shape))
    assert read.dtype == dtype_of(tensor.dtype)
    assert read.tobytes() == bytes(truth.contiguous().clone().untyped_storage())


def test_a_parameter_is_told_from_a_tensor(file):
    found = torch_files.read(file).value["model"]
    assert found["parameter"].requires_grad
    assert not found["tied"].requires_grad
    assert found["parameter"].storage == found["tied"].storage


def test_what_is_no_tensor_is_told_in_words(file):
    assert torch_files.plain(torch_files.read(file).value)["args"] == "<argparse.Namespace>"
    itself = []
    itself.append(itself)
    assert "<deeper>" in str(torch_files.plain(itself))


def archive(path, records, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, data in records:
            made.writestr(f"archive/{name}", data)


def refused(path):
    with pytest.raises(CheckpointUnreadable) as raised:
        torch_files.read(path)
    assert "\n" not in str(raised.value)
    return raised.value.why


EMPTY = b"\x80\x02}."


def test_what_is_no_whole_file_of_torch_is_refused(file, tmp_path):
    path = tmp_path / "bad.pt"
    path.write_bytes(file.read_bytes()[:-40])
    assert "cut short" in refused(path)
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


def test_numbers_that_are_not_there_are_not_read_from_elsewhere(tmp_path):
    path = tmp_path / "short.pt"
    torch.save({"a": torch.ones(100)}, path)
    with zipfile.ZipFile(path) as made:
        described = made.read("short/data.pkl")
    archive(path, [("data.pkl", described), ("data/0", b"1234"), ("byteorder", b"little")])
    found = torch_files.read(path)
    with pytest.raises(CheckpointUnreadable, match="goes beyond the record"):
        found.tensor("a", found.value["a"], "")
    archive(path, [("data.pkl", described)])
    found = torch_files.read(path)
    with pytest.raises(CheckpointUnreadable, match="lacks the record"):
        found.tensor("a", found.value["a"], "")
