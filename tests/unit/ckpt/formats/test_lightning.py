"""Lightning and Fabric checkpoints, written by them and read without them."""

import pytest
import torch

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.frameworks import lightning
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.making import made, shared_store
from tests.golden.checkpoints.model import LEARNING_RATE, STEPS, model
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors, truth_of

BEGINNING = {"epoch": 1, "global_step": 4, "pytorch-lightning_version": "2.6.0"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_trainer_checkpoint_is_bit_identical(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "lightning_file", "file")
    found, truth = registry.read_checkpoint(folder / "saved.ckpt"), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"], rate=LEARNING_RATE / 2)
    assert (found.format, found.step, found.problems) == (CheckpointFormat.LIGHTNING, STEPS, ())
    assert found.ties == {"net.head.weight": "net.embed.weight"}
    assert found.values["lr_schedulers"][0]["last_epoch"] == 3
    assert found.values["loops.fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"] == 3
    assert found.writer.startswith("lightning 2.")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sharded_fabric_checkpoint_is_bit_identical(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "lightning_file", "sharded", ranks=2)
    found, truth = registry.read_checkpoint(folder / "saved.ckpt"), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.format, found.step, found.world_size) == (CheckpointFormat.LIGHTNING, STEPS, 2)
    assert found.values["epoch"] == 1
    assert "meta.pt" in found.files


@pytest.mark.parametrize(
    "form", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"]
)
def test_version_near_the_start_is_recognized(tmp_path, form):
    state = model().state_dict()
    torch.save({**BEGINNING, "state_dict": state}, tmp_path / "a.ckpt", **form)
    found = registry.read_checkpoint(tmp_path / "a.ckpt")
    same_tensors(found, state)
    assert (found.format, found.step, found.notes) == (CheckpointFormat.LIGHTNING, 4, ())
    torch.save({"state_dict": state}, tmp_path / "b.ckpt", **form)
    assert registry.detect_format(tmp_path / "b.ckpt") is CheckpointFormat.TORCH


def test_newer_version_is_read_with_a_note(tmp_path):
    torch.save(
        {**BEGINNING, "pytorch-lightning_version": "7.1.0", "state_dict": {"w": torch.ones(1)}},
        tmp_path / "a",
    )
    assert registry.read_checkpoint(tmp_path / "a").notes == (
        "written by Lightning 7.1.0, newer than supported (2.x)",
    )


def test_not_a_dict(tmp_path):
    torch.save(["pytorch-lightning_version"], tmp_path / "a.ckpt")
    with pytest.raises(CheckpointUnreadable, match="it is not a dict"):
        lightning.read_contents(tmp_path / "a.ckpt")
