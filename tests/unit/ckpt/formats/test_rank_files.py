"""Per-rank torch.save files of FSDP1 and FSDP2, read as one checkpoint without torch."""

import pickle
import shutil

import pytest
import torch
from torch.distributed.tensor import DTensor

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.files.torch_pickle import GlobalRefused, loads
from holdfast.ckpt.formats.distributed import dtensor, rank_files
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.making import made, shared_store
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors, truth_of

FORMS = {
    "fsdp1-sharded": CheckpointFormat.FSDP1_SHARDED,
    "fsdp2-ranks": CheckpointFormat.FSDP2_SHARDED,
}


@pytest.mark.slow
@pytest.mark.matrix  # the conversion matrix reads the same two in every run
@pytest.mark.parametrize("kind", FORMS)
def test_rank_files_are_one_checkpoint(tmp_path_factory, kind):
    folder = made(shared_store(tmp_path_factory), "torch_distributed", kind, ranks=2)
    assert rank_files.detect_format(folder / "saved") is FORMS[kind]
    found, truth = (
        rank_files.read_contents(folder / "saved", MappingHints(("frozen.*",))),
        truth_of(folder),
    )
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.format, found.step, found.world_size) == (FORMS[kind], 3, 2)
    assert (found.problems, found.notes) == ((), ())
    assert found.ties == {"head.weight": "embed.weight"}
    assert found.frozen == {"frozen.weight", "frozen.bias"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS)
def test_missing_and_unreadable_ranks_are_reported(tmp_path_factory, tmp_path, kind):
    source = made(shared_store(tmp_path_factory), "torch_distributed", kind, ranks=2) / "saved"
    saved = tmp_path / "saved"
    shutil.copytree(source, saved)
    (saved / "rank_0.pt").unlink()
    (problem,) = rank_files.read_contents(saved, MappingHints(("frozen.*",))).problems
    assert problem.kind == "missing"
    shutil.copy(source / "rank_0.pt", saved)
    data = (saved / "rank_1.pt").read_bytes()
    (saved / "rank_1.pt").write_bytes(data[:-200])
    (problem, *_) = rank_files.read_contents(saved, MappingHints(("frozen.*",))).problems
    assert (problem.kind, problem.rank) in [("unreadable", 1), ("missing", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--flat", "--trained")])
def test_flat_parameters_are_nameless(tmp_path_factory, options):
    store = shared_store(tmp_path_factory)
    folder = made(store, "torch_distributed", "fsdp1-local", *options, ranks=2)
    found = rank_files.read_contents(folder / "saved")
    assert (found.format, found.step, found.world_size, found.optimizer) == (
        CheckpointFormat.FSDP1_LOCAL,
        3,
        2,
        None,
    )
    (problem,) = found.problems
    assert problem.kind == "nameless"
    assert "names and shapes" in problem.why
    flat = found.tensors["blocks.0._flat_param"]
    assert len(flat.shards) == 2
    assert sum(shard.numel for shard in flat.shards) == flat.numel


def test_ordinary_files_are_not_recognized(tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "model_0.pt")
    assert rank_files.detect_format(tmp_path) is None
    assert rank_files.detect_format(tmp_path / "model_0.pt") is None
    assert rank_files.detect_format(tmp_path / "none") is None


def test_unreadable_folder(tmp_path):
    class Bad:
        def __reduce__(self):
            return getattr, (DTensor, "full_tensor")

    torch.save({"w": Bad()}, tmp_path / "model_0.pt")
    assert rank_files.detect_format(tmp_path) is CheckpointFormat.FSDP2_SHARDED
    with pytest.raises(CheckpointUnreadable, match="getattr"):
        rank_files.read_contents(tmp_path)


@pytest.mark.parametrize("owner", [int, dict])
def test_getattr_is_allowed_for_one_class(owner):
    class Attribute:
        def __reduce__(self):
            return getattr, (owner, "__init__")

    with pytest.raises(GlobalRefused, match="getattr"):
        loads(pickle.dumps(Attribute(), 2), dtensor.CLASSES)


def test_rank_is_the_varying_number():
    assert rank_files._ranks_by_name(["step7_rank0_of_2.pt", "step7_rank1_of_2.pt"]) == {
        "step7_rank0_of_2.pt": 0,
        "step7_rank1_of_2.pt": 1,
    }
    assert rank_files._ranks_by_name(["model.pt"]) == {"model.pt": 0}
