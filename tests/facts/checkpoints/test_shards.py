"""What FSDP1 and FSDP2 save with torch.save on every rank, read as one checkpoint without torch."""

import pickle
import shutil

import pytest
import torch
from torch.distributed.tensor import DTensor

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.distributed import shards, spread
from holdfast.facts.checkpoints.files.torch_pickle import Refused, loads
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from tests.facts.checkpoints.truth import same_optimizer, same_tensors, truth_of
from tests.saved.making import made, shared_store

FORMS = {"fsdp1-sharded": Format.FSDP1_SHARDED, "fsdp2-ranks": Format.FSDP2_SHARDED}


@pytest.mark.slow
@pytest.mark.matrix  # of conversions: the same two are in it in every run
@pytest.mark.parametrize("kind", FORMS)
def test_the_shards_of_all_ranks_are_one_checkpoint(tmp_path_factory, kind):
    folder = made(shared_store(tmp_path_factory), kind, "torch_distributed", kind, ranks=2)
    assert shards.recognises(folder / "saved") is FORMS[kind]
    found, truth = shards.read(folder / "saved", Hints(("frozen.*",))), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.format, found.step, found.world_size) == (FORMS[kind], 3, 2)
    assert (found.gaps, found.notes) == ((), ())
    assert found.ties == {"head.weight": "embed.weight"}
    assert found.frozen == {"frozen.weight", "frozen.bias"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMS)
def test_a_missing_and_an_unreadable_rank_are_gaps(tmp_path_factory, tmp_path, kind):
    source = made(shared_store(tmp_path_factory), kind, "torch_distributed", kind, ranks=2) / "saved"
    saved = tmp_path / "saved"
    shutil.copytree(source, saved)
    (saved / "rank_0.pt").unlink()
    (gap,) = shards.read(saved, Hints(("frozen.*",))).gaps
    assert gap.kind == "missing"
    shutil.copy(source / "rank_0.pt", saved)
    data = (saved / "rank_1.pt").read_bytes()
    (saved / "rank_1.pt").write_bytes(data[:-200])
    (gap, *_) = shards.read(saved, Hints(("frozen.*",))).gaps
    assert (gap.kind, gap.rank) in [("unreadable", 1), ("missing", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--flat", "--trained")])
def test_flat_parameters_have_no_names_and_that_is_said(tmp_path_factory, options):
    store = shared_store(tmp_path_factory)
    folder = made(store, "fsdp1-local" + "".join(options), "torch_distributed", "fsdp1-local", *options, ranks=2)
    found = shards.read(folder / "saved")
    assert (found.format, found.step, found.world_size, found.optimizer) == (Format.FSDP1_LOCAL, 3, 2, None)
    (gap,) = found.gaps
    assert gap.kind == "nameless"
    assert "names and shapes" in gap.why
    flat = found.tensors["blocks.0._flat_param"]
    assert len(flat.pieces) == 2
    assert sum(piece.numel for piece in flat.pieces) == flat.numel


def test_ordinary_files_are_none(tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "model_0.pt")
    assert shards.recognises(tmp_path) is None
    assert shards.recognises(tmp_path / "model_0.pt") is None
    assert shards.recognises(tmp_path / "none") is None


def test_a_folder_of_which_nothing_can_be_read_says_so(tmp_path):
    class Bad:
        def __reduce__(self):
            return getattr, (DTensor, "full_tensor")

    torch.save({"w": Bad()}, tmp_path / "model_0.pt")
    assert shards.recognises(tmp_path) is Format.FSDP2_SHARDED
    with pytest.raises(CheckpointUnreadable, match="getattr"):
        shards.read(tmp_path)


@pytest.mark.parametrize("owner", [int, dict])
def test_getattr_is_known_for_one_class_of_torch_alone(owner):
    class Attribute:
        def __reduce__(self):
            return getattr, (owner, "__init__")

    with pytest.raises(Refused, match="getattr"):
        loads(pickle.dumps(Attribute(), 2), spread.CLASSES)


def test_ranks_are_the_numbers_that_differ():
    assert shards._ranks(["step7_rank0_of_2.pt", "step7_rank1_of_2.pt"]) == {
        "step7_rank0_of_2.pt": 0, "step7_rank1_of_2.pt": 1,
    }  # fmt: skip
    assert shards._ranks(["model.pt"]) == {"model.pt": 0}
