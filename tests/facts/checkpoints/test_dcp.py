"""Checkpoints of torch.distributed.checkpoint, made by torch, read without it."""

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
)  # fmt: skip

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.distributed import blobs
from holdfast.facts.checkpoints.distributed import dcp as reader
from holdfast.facts.checkpoints.distributed import index as dcp_index
from holdfast.facts.checkpoints.files.torch_pickle import Refused
from holdfast.facts.checkpoints.pieces import Reader
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.findings import Unknown
from tests.facts.checkpoints.truth import same_optimizer, same_tensors, truth_of
from tests.saved.making import made, shared_store

SPREAD = {"dcp": 2, "dcp-flat": 2, "dcp-hsdp": 4, "dcp-fsdp1": 2}


@pytest.fixture
def saved(tmp_path):
    """A small checkpoint of one process."""
    return save(tmp_path / "saved")


def save(folder, **more):
    torch.manual_seed(1)
    model = {"a.weight": torch.randn(4, 3), "scale": torch.tensor(2.0), "half": torch.randn(5).bfloat16(),
             "none": torch.empty(0, 3), "seen": torch.arange(3)}  # fmt: skip
    state = {"model": model, "step": 7, "scheduler": {"last_epoch": 6, "lrs": [0.1]}, "epoch": torch.tensor(2), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no other ranks
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        # DCP of FSDP2 and DDP goes through the matrix of conversions in every run.
        pytest.param(kind, ranks, marks=() if kind == "dcp-flat" else pytest.mark.matrix)
        for kind, ranks in SPREAD.items()
    ],
)
def test_sharded_state_of_fsdp_is_read_bit_by_bit(tmp_path_factory, kind, ranks):
    folder = made(shared_store(tmp_path_factory), kind, "torch_distributed", kind, ranks=ranks)
    assert reader.recognises(folder / "saved") is Format.DCP
    found, truth = reader.read(folder / "saved"), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.step, found.world_size, found.gaps, found.notes) == (3, ranks, (), ())
    assert found.ties == {"head.weight": "embed.weight"}
    assert list(found.tensors)[:4] == ["scale", "seen", "embed.weight", "frozen.weight"]
    assert found.buffers == {"scale", "seen"}
    assert found.frozen == {"frozen.weight", "frozen.bias"}


@pytest.mark.slow
def test_bfloat16_weights_are_read(tmp_path_factory):
    store = shared_store(tmp_path_factory)
    folder = made(store, "dcp-bfloat16", "torch_distributed", "dcp", "--bfloat16", "--untied", "--trained", ranks=2)
    found, truth = reader.read(folder / "saved"), truth_of(folder)
    same_tensors(found, truth["model"])
    assert found.ties == {}
    assert found.tensors["head.weight"].dtype == "bfloat16"


@pytest.mark.slow
def test_an_optimizer_that_numbers_its_parameters_gets_names(tmp_path_factory):
    store = shared_store(tmp_path_factory)
    options = ("dcp-ddp", "--untied", "--trained")
    folder = made(store, "dcp-ddp-trained", "torch_distributed", *options, ranks=2)
    found, truth = reader.read(folder / "saved"), truth_of(folder)
    same_tensors(found, truth["model"], "module.")
    same_optimizer(found, truth["optimizer"], "module.")


@pytest.mark.slow
def test_that_a_module_was_frozen_is_assumed_and_said(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "dcp-ddp", "torch_distributed", "dcp-ddp", ranks=2)
    found, truth = reader.read(folder / "saved"), truth_of(folder)
    same_optimizer(found, truth["optimizer"], "module.")
    assert "module.frozen.weight" in found.notes[0]
    assert "--frozen" in found.notes[0]
    said = reader.read(folder / "saved", Hints(("*frozen*",)))
    same_optimizer(said, truth["optimizer"], "module.")
    assert said.notes == ()
    assert said.frozen == {"module.frozen.weight", "module.frozen.bias"}
    assert said.buffers == {"module.scale", "module.seen"}


def test_what_one_process_saved_is_read(saved):
    found = reader.read(saved)
    torch.manual_seed(1)
    with Reader(saved) as numbers:
        assert np.array_equal(numbers.whole(found.tensors["a.weight"]), torch.randn(4, 3).numpy())
        assert numbers.whole(found.tensors["scale"]) == 2.0
        assert numbers.whole(found.tensors["none"]).shape == (0, 3)
    assert list(found.tensors) == ["a.weight", "scale", "half", "none", "seen"]
    assert (found.step, found.world_size, found.optimizer) == (7, 1, None)
    assert found.values == {"step": 7, "scheduler.last_epoch": 6, "scheduler.lrs": [0.1], "epoch": 2}
    assert set(found.files) == {".metadata", "__0_0.distcp"}


def test_a_missing_and_a_truncated_file_are_gaps(saved):
    shard = saved / "__0_0.distcp"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    found = reader.read(saved)
    (gap,) = (gap for gap in found.gaps if gap.kind == "truncated")
    assert (gap.file, gap.rank) == ("__0_0.distcp", 0)
    assert f"{size - 1:,} bytes" in gap.why
    shard.unlink()
    found = reader.read(saved)
    assert [(gap.kind, gap.rank) for gap in found.gaps if gap.kind == "missing"] == [("missing", 0)]
    assert set(found.tensors) == {"a.weight", "scale", "half", "none", "seen"}
    assert isinstance(found.step, Unknown)


def test_a_save_that_was_never_finished_says_so(saved):
    (saved / ".metadata").unlink()
    assert reader.recognises(saved) is Format.DCP
    with pytest.raises(CheckpointUnreadable, match=r"no \.metadata.*never finished"):
        reader.read(saved)


def test_an_index_that_would_run_something_is_refused_and_does_not_run(saved):
    mark = saved / "mark"

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    with (saved / ".metadata").open("rb") as stream:
        whole = pickle.load(stream)
    whole.planner_data["more"] = Runs()
    (saved / ".metadata").write_bytes(pickle.dumps(whole))
    with pytest.raises(CheckpointUnreadable, match=r"posix\.system") as refused:
        reader.read(saved)
    assert isinstance(refused.value.__cause__, Refused)
    assert not mark.exists()


def test_a_value_that_would_run_something_is_a_gap_with_its_name(saved):
    mark = saved / "mark"

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    shutil.rmtree(saved)
    save(saved, bad=Runs())
    found = reader.read(saved)
    (gap,) = found.gaps
    assert (gap.kind, gap.names) == ("refused", ("posix.system",))
    assert not mark.exists()


def test_a_value_of_lists_that_hold_each_other_costs_nothing():
    laughs = {"x": 1}
    for _ in range(25):
        laughs = [laughs] * 20
    found = blobs.as_plain(laughs)
    assert found == "<more than can be>"
    assert blobs.as_plain([1, (2, "a"), {"b": None}]) == [1, (2, "a"), {"b": None}]


@pytest.mark.parametrize("data", [b"", b"\x80\x04N.", pickle.dumps({"a": 1}), pickle.dumps(MetadataIndex("a")), b"abc"])
def test_what_is_no_index_says_so(saved, data):
    (saved / ".metadata").write_bytes(data)
    with pytest.raises(CheckpointUnreadable, match="index"):
        reader.read(saved)


def index_of(file="__0_0.distcp", shape=(4,), offsets=(0,), sizes=(4,), offset=0):
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), [chunk])
    places = {MetadataIndex("w", torch.Size(offsets)): _StorageInfo(file, offset, 1000)}
    return Metadata({"w": tensor}, storage_data=places)


@pytest.mark.parametrize(
    "index",
    [
        index_of(file="../other"), index_of(file="/etc/passwd"), index_of(sizes=(5,)), index_of(offsets=(1,)),
        index_of(offset=-1), index_of(shape=(4, 4)), Metadata({"w": 3}, planner_data=7, storage_data=[1]),
    ],
)  # fmt: skip
def test_an_index_that_cannot_be_is_refused(tmp_path, index):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointUnreadable):
        reader.read(tmp_path)


def test_a_pickle_cannot_change_the_classes_it_is_read_into(tmp_path):
    name = b"torch.distributed.checkpoint.metadata\nMetadataIndex\n"
    data = b"\x80\x02c" + name + b"(N}X\x01\x00\x00\x00xK\x01st" + b"b."
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(CheckpointUnreadable):
        reader.read(tmp_path)
    assert not hasattr(dcp_index._Index, "x")


def test_indexes_of_each_rank_are_read_as_one(tmp_path):
    for rank in range(2):
        found = index_of(f"__{rank}_0.distcp", (8,), (4 * rank,))
        (tmp_path / f"__{rank}.metadata").write_bytes(pickle.dumps(found))
    (entry,) = reader.Folder(tmp_path).entries
    assert [chunk.start for chunk in entry.chunks] == [(0,), (4,)]


def test_a_list_of_pieces_that_all_tensors_share_does_not_cost_their_product(tmp_path):
    chunks = [ChunkStorageMetadata(torch.Size([0]), torch.Size([4]))] * 20_000
    tensors = {f"w{n}": TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([4]), chunks)
               for n in range(5_000)}  # fmt: skip
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(tensors, storage_data={})))
    began = time.monotonic()
    with pytest.raises(CheckpointUnreadable, match="more pieces"):
        reader.read(tmp_path)
    assert time.monotonic() - began < 10


@pytest.mark.slow
@pytest.mark.matrix
def test_the_index_of_a_large_job_is_read_in_seconds(tmp_path):
    ranks, tensors = 500, 1000
    listed, places = {}, {}
    for n in range(tensors):
        name = f"model.layers.{n}.weight"
        chunks = [ChunkStorageMetadata(torch.Size([rank, 0]), torch.Size([1, 8])) for rank in range(ranks)]
        listed[name] = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([ranks, 8]), chunks)
        for rank in range(ranks):
            index = MetadataIndex(name, torch.Size([rank, 0]), rank)
            places[index] = _StorageInfo(f"__{rank}_0.distcp", n * 1500, 1500)
    paths = {name: ("model", name.removeprefix("model.")) for name in listed}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(listed, paths, places)))
    began = time.process_time()
    found = reader.read(tmp_path)
    took_s = time.process_time() - began
    assert sum(len(each.pieces) for each in found.tensors.values()) == ranks * tensors
    assert len(found.gaps) == ranks
    assert took_s < 30, f"it took {took_s:.1f} s"
