"""Folders of Accelerator.save_state, made by Accelerate under DDP and FSDP, read without it."""

import os
import shutil

import pytest
import torch

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.frameworks import accelerate
from tests.facts.checkpoints.truth import same_optimizer, same_tensors, truth_of
from tests.saved.making import made, shared_store
from tests.saved.model import LEARNING_RATE, STEPS

#: What the scheduler of the maker leaves after three steps.
RATE = LEARNING_RATE / 2
FORMS = {"bin": (2, "ddp", "--bin"), "named": (1, "ddp", "--named"), "full": (2, "fsdp2-full"),
         "sharded": (2, "fsdp2-sharded"), "fsdp1": (2, "fsdp1-sharded")}  # fmt: skip


def saved(tmp_path_factory, name, ranks, *options):
    return made(shared_store(tmp_path_factory), f"accelerate-{name}", "accelerate_folder", *options, ranks=ranks)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=() if name == "sharded" else pytest.mark.matrix)
        for name, options in FORMS.items()
    ],
)
def test_model_optimizer_and_scheduler_bit_by_bit(tmp_path_factory, name, options):
    folder = saved(tmp_path_factory, name, *options)
    found, truth = formats.read(folder / "saved"), truth_of(folder)
    if name == "named":  # safetensors drops second names of tied weights
        del truth["model"]["head.weight"]
    else:
        assert found.ties == {"head.weight": "embed.weight"}
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"], rate=RATE)
    assert (found.format, found.step, found.world_size) == (Format.ACCELERATE, STEPS, options[0])
    assert found.gaps == ()
    assert (found.frozen, found.buffers) == ({"frozen.weight", "frozen.bias"}, {"scale", "seen"})
    assert found.values["scheduler.last_epoch"] == 3


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_optimizer_without_names_beside_safetensors_is_left_out_and_said(tmp_path_factory):
    folder = saved(tmp_path_factory, "ddp", 1, "ddp")
    found = formats.read(folder / "saved")
    assert (found.optimizer, found.step) == (None, STEPS)
    assert "does not keep the parameters' order" in found.notes[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_is_missing_of_it_is_named(tmp_path_factory, tmp_path):
    folder = shutil.copytree(saved(tmp_path_factory, "sharded", *FORMS["sharded"]) / "saved", tmp_path / "saved")
    (folder / "random_states_0.pkl").unlink()
    (folder / "pytorch_model_fsdp_0" / "__1_0.distcp").unlink()
    os.truncate(folder / "scheduler.bin", 100)
    found = formats.read(folder)
    assert {(gap.kind, gap.file, gap.rank) for gap in found.gaps} >= {
        ("missing", "random_states_0.pkl", 0), ("missing", "pytorch_model_fsdp_0/__1_0.distcp", 1),
        ("truncated", "scheduler.bin", None),
    }  # fmt: skip


def test_without_a_model(tmp_path):
    torch.save({"step": 0}, tmp_path / "random_states_0.pkl")
    with pytest.raises(CheckpointUnreadable, match="there is no model in it"):
        accelerate.read(tmp_path)


def test_further_models_are_said(tmp_path):
    for name in ("pytorch_model.bin", "pytorch_model_1.bin"):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
    torch.save({"step": 0}, tmp_path / "random_states_0.pkl")
    assert formats.read(tmp_path).notes == ("pytorch_model_1.bin holds another model, which is not looked at",)
