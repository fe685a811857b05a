"""Checkpoints of Lightning and Fabric, made by them, read without them."""

import pytest
import torch

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.frameworks import lightning
from tests.facts.checkpoints.truth import same_optimizer, same_tensors, truth_of
from tests.saved.making import made, shared_store
from tests.saved.model import LEARNING_RATE, STEPS, model

BEGINNING = {"epoch": 1, "global_step": 4, "pytorch-lightning_version": "2.6.0"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_the_trainer_saved_bit_by_bit(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "lightning-file", "lightning_file", "file")
    found, truth = formats.read(folder / "saved.ckpt"), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"], rate=LEARNING_RATE / 2)
    assert (found.format, found.step, found.gaps) == (Format.LIGHTNING, STEPS, ())
    assert found.ties == {"net.head.weight": "net.embed.weight"}
    assert found.values["lr_schedulers"][0]["last_epoch"] == 3
    assert found.values["loops.fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"] == 3
    assert found.writer.startswith("lightning 2.")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_fabric_saved_in_shards_bit_by_bit(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "lightning-sharded", "lightning_file", "sharded", ranks=2)
    found, truth = formats.read(folder / "saved.ckpt"), truth_of(folder)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.format, found.step, found.world_size) == (Format.LIGHTNING, STEPS, 2)
    assert found.values["epoch"] == 1
    assert "meta.pt" in found.files


@pytest.mark.parametrize("form", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_a_file_says_at_its_beginning_that_it_is_one(tmp_path, form):
    state = model().state_dict()
    torch.save({**BEGINNING, "state_dict": state}, tmp_path / "a.ckpt", **form)
    found = formats.read(tmp_path / "a.ckpt")
    same_tensors(found, state)
    assert (found.format, found.step, found.notes) == (Format.LIGHTNING, 4, ())
    torch.save({"state_dict": state}, tmp_path / "b.ckpt", **form)
    assert formats.detect(tmp_path / "b.ckpt") is Format.TORCH


def test_one_from_the_future_is_read_and_that_is_said(tmp_path):
    torch.save({**BEGINNING, "pytorch-lightning_version": "7.1.0", "state_dict": {"w": torch.ones(1)}}, tmp_path / "a")
    assert formats.read(tmp_path / "a").notes == ("Lightning 7.1.0 wrote it, which is newer than what is known here",)


def test_one_that_is_no_dict(tmp_path):
    torch.save(["pytorch-lightning_version"], tmp_path / "a.ckpt")
    with pytest.raises(CheckpointUnreadable, match="it is no dict"):
        lightning.read(tmp_path / "a.ckpt")
