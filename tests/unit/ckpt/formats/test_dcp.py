"""torch.distributed.checkpoint folders, written by torch and read without it."""

import os
import pickle
import shutil
import time
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.files.torch_pickle import GlobalRefused
from holdfast.ckpt.formats.distributed import blobs
from holdfast.ckpt.formats.distributed import dcp as reader
from holdfast.ckpt.formats.distributed import index as dcp_index
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown
from tests.golden.checkpoints.making import made, shared_store
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors, truth_of

SPREAD = {"dcp": 2, "dcp-flat": 2, "dcp-hsdp": 4, "dcp-fsdp1": 2}


@pytest.fixture
def saved(tmp_path):
    """Return a small checkpoint of one process."""
    return save(tmp_path / "saved")


def save(folder, **more):
    torch.manual_seed(1)
    model = {
        "a.weight": torch.randn(4, 3),
        "scale": torch.tensor(2.0),
        "half": torch.randn(5).bfloat16(),
        "none": torch.empty(0, 3),
        "seen": torch.arange(3),
    }
    state = {
        "model": model,
        "step": 7,
        "scheduler": {"last_epoch": 6, "lrs": [0.1]},
        "epoch": torch.tensor(2),
        **more,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single-process warning
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        # The conversion matrix covers DCP of FSDP2 and DDP in every run.
        pytest.param(kind, ranks, marks=() if kind == "dcp-flat" else pytest.mark.matrix)
        for kind, ranks in SPREAD.items()
    ],
)
def test_fsdp_state_is_bit_identical(tmp_path_factory, kind, ranks):
    folder = made(shared_store(tmp_path_factory), "torch_distributed", kind, ranks=ranks)
    assert reader.detect_format(folder / "saved") is CheckpointFormat.DCP
    found, truth = reader.read_contents(folder / "saved"), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.step, found.world_size, found.problems, found.notes) == (3, ranks, (), ())
    assert found.ties == {"head.weight": "embed.weight"}
    assert list(found.tensors)[:4] == ["scale", "seen", "embed.weight", "frozen.weight"]
    assert found.buffers == {"scale", "seen"}
    assert found.frozen == {"frozen.weight", "frozen.bias"}


@pytest.mark.slow
def test_bfloat16_weights_are_read(tmp_path_factory):
    store = shared_store(tmp_path_factory)
    options = ("dcp", "--bfloat16", "--untied", "--trained")
    folder = made(store, "torch_distributed", *options, ranks=2)
    found, truth = reader.read_contents(folder / "saved"), truth_of(folder)
    same_tensors(found, truth["model"])
    assert found.ties == {}
    assert found.tensors["head.weight"].dtype == "bfloat16"


@pytest.mark.slow
def test_numbered_optimizer_gets_names(tmp_path_factory):
    store = shared_store(tmp_path_factory)
    options = ("dcp-ddp", "--untied", "--trained")
    folder = made(store, "torch_distributed", *options, ranks=2)
    found, truth = reader.read_contents(folder / "saved"), truth_of(folder)
    same_tensors(found, truth["model"], "module.")
    same_optimizer(found, truth["optimizer"], "module.")


@pytest.mark.slow
def test_assumed_frozen_module_is_reported(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "torch_distributed", "dcp-ddp", ranks=2)
    found, truth = reader.read_contents(folder / "saved"), truth_of(folder)
    same_optimizer(found, truth["optimizer"], "module.")
    assert "module.frozen.weight" in found.notes[0]
    assert "--frozen" in found.notes[0]
    hinted = reader.read_contents(folder / "saved", MappingHints(("*frozen*",)))
    same_optimizer(hinted, truth["optimizer"], "module.")
    assert hinted.notes == ()
    assert hinted.frozen == {"module.frozen.weight", "module.frozen.bias"}
    assert hinted.buffers == {"module.scale", "module.seen"}


def test_single_process_checkpoint(saved):
    found = reader.read_contents(saved)
    torch.manual_seed(1)
    with TensorReader(saved) as numbers:
        assert np.array_equal(
            numbers.read_tensor(found.tensors["a.weight"]), torch.randn(4, 3).numpy()
        )
        assert numbers.read_tensor(found.tensors["scale"]) == 2.0
        assert numbers.read_tensor(found.tensors["none"]).shape == (0, 3)
    assert list(found.tensors) == ["a.weight", "scale", "half", "none", "seen"]
    assert (found.step, found.world_size, found.optimizer) == (7, 1, None)
    assert found.values == {
        "step": 7,
        "scheduler.last_epoch": 6,
        "scheduler.lrs": [0.1],
        "epoch": 2,
    }
    assert set(found.files) == {".metadata", "__0_0.distcp"}


def test_missing_and_truncated_files_are_reported(saved):
    shard_file = saved / "__0_0.distcp"
    size = shard_file.stat().st_size
    os.truncate(shard_file, size - 1)
    found = reader.read_contents(saved)
    (problem,) = (problem for problem in found.problems if problem.kind == "truncated")
    assert (problem.file, problem.rank) == ("__0_0.distcp", 0)
    assert f"{size - 1:,} bytes" in problem.why
    shard_file.unlink()
    found = reader.read_contents(saved)
    assert [
        (problem.kind, problem.rank) for problem in found.problems if problem.kind == "missing"
    ] == [("missing", 0)]
    assert set(found.tensors) == {"a.weight", "scale", "half", "none", "seen"}
    assert isinstance(found.step, Unknown)


def test_unfinished_save(saved):
    (saved / ".metadata").unlink()
    assert reader.detect_format(saved) is CheckpointFormat.DCP
    with pytest.raises(CheckpointUnreadable, match=r"no \.metadata.*did not finish"):
        reader.read_contents(saved)


def test_malicious_index_is_refused(saved):
    mark = saved / "mark"

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    with (saved / ".metadata").open("rb") as stream:
        whole = pickle.load(stream)
    whole.planner_data["more"] = Runs()
    (saved / ".metadata").write_bytes(pickle.dumps(whole))
    with pytest.raises(CheckpointUnreadable, match=r"posix\.system") as refused:
        reader.read_contents(saved)
    assert isinstance(refused.value.__cause__, GlobalRefused)
    assert not mark.exists()


def test_malicious_value_is_reported(saved):
    mark = saved / "mark"

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    shutil.rmtree(saved)
    save(saved, bad=Runs())
    found = reader.read_contents(saved)
    (problem,) = found.problems
    assert (problem.kind, problem.names) == ("refused", ("posix.system",))
    assert not mark.exists()


def test_recursive_lists_are_bounded():
    nested = {"x": 1}
    for _ in range(25):
        nested = [nested] * 20
    found = blobs.as_plain(nested)
    assert found == "<too large>"
    assert blobs.as_plain([1, (2, "a"), {"b": None}]) == [1, (2, "a"), {"b": None}]


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04N.", pickle.dumps({"a": 1}), pickle.dumps(MetadataIndex("a")), b"abc"]
)
def test_invalid_index(saved, data):
    (saved / ".metadata").write_bytes(data)
    with pytest.raises(CheckpointUnreadable, match="index"):
        reader.read_contents(saved)


def index_of(file="__0_0.distcp", shape=(4,), offsets=(0,), sizes=(4,), offset=0):
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), [chunk])
    places = {MetadataIndex("w", torch.Size(offsets)): _StorageInfo(file, offset, 1000)}
    return Metadata({"w": tensor}, storage_data=places)


@pytest.mark.parametrize(
    "index",
    [
        index_of(file="../other"),
        index_of(file="/etc/passwd"),
        index_of(sizes=(5,)),
        index_of(offsets=(1,)),
        index_of(offset=-1),
        index_of(shape=(4, 4)),
        Metadata({"w": 3}, planner_data=7, storage_data=[1]),
    ],
)
def test_inconsistent_index_is_refused(tmp_path, index):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointUnreadable):
        reader.read_contents(tmp_path)


def test_pickle_cannot_modify_classes(tmp_path):
    name = b"torch.distributed.checkpoint.metadata\nMetadataIndex\n"
    data = b"\x80\x02c" + name + b"(N}X\x01\x00\x00\x00xK\x01st" + b"b."
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(CheckpointUnreadable):
        reader.read_contents(tmp_path)
    assert not hasattr(dcp_index._MetadataIndex, "x")


def test_rank_indexes_are_merged(tmp_path):
    for rank in range(2):
        found = index_of(f"__{rank}_0.distcp", (8,), (4 * rank,))
        (tmp_path / f"__{rank}.metadata").write_bytes(pickle.dumps(found))
    (entry,) = reader.DcpFolder(tmp_path).entries
    assert [chunk.start for chunk in entry.chunks] == [(0,), (4,)]


def test_shared_chunk_list_is_bounded(tmp_path):
    chunks = [ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))] * 20_000
    tensors = {
        f"w{n}": TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([4]), chunks)
        for n in range(5_000)
    }
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(tensors, storage_data={})))
    start = time.monotonic()
    with pytest.raises(CheckpointUnreadable, match="more shards"):
        reader.read_contents(tmp_path)
    assert time.monotonic() - start < 10


@pytest.mark.slow
@pytest.mark.matrix
def test_large_index_is_parsed_in_seconds(tmp_path):
    ranks, tensors = 500, 1000
    listed, places = {}, {}
    for n in range(tensors):
        name = f"model.layers.{n}.weight"
        chunks = [
            ChunkStorageMetadata(torch.Size([rank, 0]), torch.Size([1, 8])) for rank in range(ranks)
        ]
        listed[name] = TensorStorageMetadata(
            TensorProperties(torch.float32), torch.Size([ranks, 8]), chunks
        )
        for rank in range(ranks):
            index = MetadataIndex(name, torch.Size([rank, 0]), rank)
            places[index] = _StorageInfo(f"__{rank}_0.distcp", n * 1500, 1500)
    paths = {name: ("model", name.removeprefix("model.")) for name in listed}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(listed, paths, places)))
    start = time.process_time()
    found = reader.read_contents(tmp_path)
    took_s = time.process_time() - start
    assert sum(len(each.shards) for each in found.tensors.values()) == ranks * tensors
    assert len(found.problems) == ranks
    assert took_s < 30, f"it took {took_s:.1f} s"
