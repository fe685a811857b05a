"""Accelerator.save_state folders, written by Accelerate under DDP and FSDP, read without it."""

import os
import shutil

import pytest
import torch

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.frameworks import accelerate
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.making import made, shared_store
from tests.golden.checkpoints.model import LEARNING_RATE, STEPS
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors, truth_of

#: The learning rate of the generator's scheduler after three steps.
RATE = LEARNING_RATE / 2
FORMS = {
    "bin": (2, "ddp", "--bin"),
    "named": (1, "ddp", "--named"),
    "full": (2, "fsdp2-full"),
    "sharded": (2, "fsdp2-sharded"),
    "fsdp1": (2, "fsdp1-sharded"),
}


def saved(tmp_path_factory, ranks, *options):
    return made(shared_store(tmp_path_factory), "accelerate_folder", *options, ranks=ranks)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=() if name == "sharded" else pytest.mark.matrix)
        for name, options in FORMS.items()
    ],
)
def test_model_optimizer_and_scheduler_are_bit_identical(tmp_path_factory, name, options):
    folder = saved(tmp_path_factory, *options)
    found, truth = registry.read_checkpoint(folder / "saved"), truth_of(folder)
    if name == "named":  # safetensors drops the aliases of tied weights
        del truth["model"]["head.weight"]
    else:
        assert found.ties == {"head.weight": "embed.weight"}
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"], rate=RATE)
    assert (found.format, found.step, found.world_size) == (
        CheckpointFormat.ACCELERATE,
        STEPS,
        options[0],
    )
    assert found.problems == ()
    assert (found.frozen, found.buffers) == ({"frozen.weight", "frozen.bias"}, {"scale", "seen"})
    assert found.values["scheduler.last_epoch"] == 3


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_optimizer_without_names_is_omitted_with_a_note(tmp_path_factory):
    folder = saved(tmp_path_factory, 1, "ddp")
    found = registry.read_checkpoint(folder / "saved")
    assert (found.optimizer, found.step) == (None, STEPS)
    assert "does not preserve parameter order" in found.notes[0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_missing_files_are_reported(tmp_path_factory, tmp_path):
    folder = shutil.copytree(
        saved(tmp_path_factory, *FORMS["sharded"]) / "saved", tmp_path / "saved"
    )
    (folder / "random_states_0.pkl").unlink()
    (folder / "pytorch_model_fsdp_0" / "__1_0.distcp").unlink()
    os.truncate(folder / "scheduler.bin", 100)
    found = registry.read_checkpoint(folder)
    assert {(problem.kind, problem.file, problem.rank) for problem in found.problems} >= {
        ("missing", "random_states_0.pkl", 0),
        ("missing", "pytorch_model_fsdp_0/__1_0.distcp", 1),
        ("truncated", "scheduler.bin", None),
    }


def test_without_a_model(tmp_path):
    torch.save({"step": 0}, tmp_path / "random_states_0.pkl")
    with pytest.raises(CheckpointUnreadable, match="it contains no model"):
        accelerate.read_contents(tmp_path)


def test_ignored_models_are_reported(tmp_path):
    for name in ("pytorch_model.bin", "pytorch_model_1.bin"):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
    torch.save({"step": 0}, tmp_path / "random_states_0.pkl")
    assert registry.read_checkpoint(tmp_path).notes == (
        "ignoring pytorch_model_1.bin, which holds another model",
    )
