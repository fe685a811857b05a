"""Checkpoints that claim more than their files hold are refused before anything is allocated."""

import json
import pickle
import shutil
import struct

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.ckpt import verification
from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert.pipeline import ConversionRequest, convert_checkpoint
from holdfast.ckpt.files import torch_pickle
from holdfast.ckpt.formats import registry
from holdfast.core.errors import CheckpointUnreadable, HoldfastError, MissingFile


def convert(path):
    target = path.with_name("converted")
    request = ConversionRequest(source=path, target=target, to=CheckpointFormat.SAFETENSORS)
    convert_checkpoint(request)
    return registry.read_checkpoint(target)


def refused_everywhere(path, words):
    with pytest.raises(CheckpointUnreadable, match=words):
        registry.read_checkpoint(path)
    assert verification.verify_checkpoint(path).exit_status == 1
    with pytest.raises(CheckpointUnreadable, match=words):
        convert(path)


def save_torch(path, **tensors):
    torch.save({"b": torch.ones(3), **tensors}, path)
    return path


def test_a_tensor_expanded_to_8_gib_is_refused(tmp_path):
    path = save_torch(tmp_path / "a.pt", w=torch.zeros(1).expand(1 << 31))
    assert path.stat().st_size < 2048
    refused_everywhere(path, "its tensors have 8.0 GiB, but its files have only")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(64.0)[::2],
        torch.arange(12.0).reshape(3, 4).t(),
        torch.tensor(3.0).expand(4, 5),
        torch.arange(4.0).reshape(4, 1).expand(4, 5),
    ],
    ids=["strided", "transposed", "scalar expanded", "column expanded"],
)
def test_small_strided_and_expanded_tensors_are_converted(tmp_path, tensor):
    path = save_torch(tmp_path / "a.pt", w=tensor)
    assert verification.verify_checkpoint(path).exit_status != 1
    convert(path)
    from safetensors.numpy import load_file

    assert np.array_equal(load_file(tmp_path / "converted")["w"], tensor.numpy())


def test_a_zip_of_an_unknown_version_is_unreadable(tmp_path):
    path = save_torch(tmp_path / "a.pt")
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02") + 6
    data[at : at + 2] = struct.pack("<H", 64)
    path.write_bytes(data)
    refused_everywhere(path, "zip file version 6.4")


def test_a_link_to_itself_is_no_checkpoint(tmp_path):
    path = tmp_path / "self.pt"
    path.symlink_to("self.pt")
    for use in (registry.read_checkpoint, verification.verify_checkpoint, convert):
        with pytest.raises((MissingFile, CheckpointUnreadable)):
            use(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp")
    for name, columns in (("a", 8), ("b", 80)):
        state = {"model": {f"l{row}": torch.randn(4 + row, columns) for row in range(3)}}
        dcp.save(state, checkpoint_id=folder / name, no_dist=True)
    return folder


def change_index(folder, change):
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(next(iter(metadata.state_dict_metadata.values())))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.filterwarnings("ignore")
def test_a_dcp_tensor_larger_than_its_shards_is_incomplete(saved, tmp_path):
    path = tmp_path / "claims"
    shutil.copytree(saved / "a", path)
    change_index(path, lambda entry: setattr(entry, "size", torch.Size([1 << 40, 1 << 40])))
    (problem,) = registry.read_checkpoint(path).problems
    assert problem.why == f"the shards of model.l0 have 32 of its {1 << 80:,} elements"
    assert verification.verify_checkpoint(path).exit_status == 1
    with pytest.raises(CheckpointUnreadable, match="have 32 of its"):
        convert(path)


@pytest.mark.filterwarnings("ignore")
def test_a_dcp_shard_larger_than_its_file_is_refused(saved, tmp_path):
    path = tmp_path / "claims"
    shutil.copytree(saved / "a", path)

    def claim(entry):
        entry.size = entry.chunks[0].sizes = torch.Size([1 << 40, 1 << 40])

    change_index(path, claim)
    refused_everywhere(path, "TiB, but its files have only")


@pytest.mark.filterwarnings("ignore")
def test_a_shard_of_another_dcp_is_found(saved, tmp_path):
    path = tmp_path / "swapped"
    shutil.copytree(saved / "a", path)
    shutil.copy(saved / "b" / "__0_0.distcp", path / "__0_0.distcp")
    assert verification.verify_checkpoint(path).exit_status == 1
    with pytest.raises(HoldfastError):
        convert(path)


def test_safetensors_of_too_many_tensors_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({f"l{number}": entry for number in range(150_000)}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(CheckpointUnreadable, match="it describes 150,000 tensors in"):
        registry.read_checkpoint(path)


def test_overlapping_safetensors_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    entry = {"dtype": "F32", "shape": [1 << 18], "data_offsets": [0, 1 << 20]}
    header = json.dumps({f"l{number}": entry for number in range(200)}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(1 << 20))
    refused_everywhere(path, "its tensors have 200.0 MiB, but its files have only 1.0 MiB")


def test_torch_files_of_too_many_tensors_are_refused(tmp_path):
    shared = torch.ones(4)
    torch.save({str(number): shared for number in range(140_000)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointUnreadable, match="describes more than 131,072 tensors"):
        registry.read_checkpoint(tmp_path / "a.pt")


def test_a_pickle_of_empty_lists_is_refused():
    with pytest.raises(torch_pickle.PickleUnreadable, match="containers"):
        torch_pickle.loads(b"\x80\x02](" + b"]" * 3_000_000 + b"e.")


def test_a_large_description_of_little_data_is_refused(tmp_path):
    from torch.distributed.checkpoint.metadata import Metadata

    index = Metadata(state_dict_metadata={}, storage_meta=bytes(40 << 20))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointUnreadable, match=r"an index of 40\.0 MiB"):
        registry.read_checkpoint(tmp_path)
