"""`ckpt seal`: every later flip is found, and checkpoints that the callbacks sealed are read."""

import random
import shutil

import pytest
import torch
from safetensors.torch import save_file

from holdfast.ckpt.formats import registry
from holdfast.ckpt.seal import manifest_path, seal_checkpoint
from holdfast.ckpt.verification import verify_checkpoint
from holdfast.core.errors import CheckpointUnreadable, InvalidValue
from holdfast.training.callbacks import verified_checkpoints
from tests.golden.checkpoints.making import made, shared_store


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.randn(40, 40), "b": torch.ones(40)}, path)
    return path


@pytest.fixture
def huggingface(tmp_path):
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    save_file({"w": torch.randn(4, 4)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_without_checksums_the_result_is_inconclusive(weights):
    report = verify_checkpoint(weights)
    assert report.exit_status == 3
    assert "`holdfast ckpt seal` records hashes" in report.verdict.unseen[0]


def test_every_flip_after_the_seal_is_found(weights):
    seal_checkpoint(weights)
    assert verify_checkpoint(weights).exit_status == 0
    size = weights.stat().st_size
    for at in random.Random(0).sample(range(size), 40):
        flip(weights, at)
        assert verify_checkpoint(weights).exit_status == 1, at
        flip(weights, at)
    assert verify_checkpoint(weights).exit_status == 0


def test_a_folder_is_sealed_with_all_its_files(huggingface):
    seal_checkpoint(huggingface)
    assert verify_checkpoint(huggingface).exit_status == 0
    flip(huggingface / "config.json", 3)
    assert verify_checkpoint(huggingface).exit_status == 1


def test_a_damaged_manifest_is_reported(weights):
    seal_checkpoint(weights)
    flip(manifest_path(weights), 60)
    assert verify_checkpoint(weights).exit_status == 1


def test_an_existing_manifest_is_kept(weights):
    seal_checkpoint(weights)
    with pytest.raises(InvalidValue, match="exists"):
        seal_checkpoint(weights)
    seal_checkpoint(weights, overwrite=True)


def test_an_incomplete_checkpoint_is_not_sealed(weights):
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointUnreadable, match="it is incomplete"):
        seal_checkpoint(weights)
    assert not manifest_path(weights).exists()


def test_an_accelerate_folder_sealed_after_save_state_keeps_its_format(tmp_path, tmp_path_factory):
    made_folder = made(shared_store(tmp_path_factory), "accelerate_folder", "ddp", ranks=2)
    folder = shutil.copytree(made_folder / "saved", tmp_path / "saved")
    assert verify_checkpoint(folder).exit_status == 3
    verified_checkpoints.seal(folder, 3)
    assert registry.detect_format(folder) == "accelerate"
    assert verify_checkpoint(folder).exit_status == 0
    flip(folder / "model.safetensors", -5)
    assert verify_checkpoint(folder).exit_status == 1


def test_checkpoints_sealed_by_the_callbacks_keep_their_format(huggingface, tmp_path):
    verified_checkpoints.seal(huggingface, 500)
    assert registry.detect_format(huggingface) == "huggingface"
    assert verify_checkpoint(huggingface).exit_status == 0
    lightning = tmp_path / "step-0000000012"
    lightning.mkdir()
    state = {"state_dict": {"w": torch.ones(3)}, "pytorch-lightning_version": "2", "loops": {}}
    torch.save({**state, "epoch": 1, "global_step": 12}, lightning / "lightning.ckpt")
    verified_checkpoints.seal(lightning, 12)
    assert verify_checkpoint(lightning).exit_status == 0
    flip(lightning / "lightning.ckpt", 100)
    assert verify_checkpoint(lightning).exit_status == 1
    shutil.rmtree(lightning)
