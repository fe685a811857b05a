"""Folders of Hugging Face: shards and their index, what is missing of them, and what the Trainer adds."""

import json

import pytest
import torch
from safetensors.torch import save_file

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.frameworks import huggingface
from tests.facts.checkpoints.truth import same_optimizer, same_tensors
from tests.saved.model import STEPS, loss_of, model, optimizer_of

SUFFIXES = (".safetensors", ".bin")


def weights():
    return {name: each.clone() for name, each in model().state_dict().items() if name != "head.weight"}


def saved(folder, suffix, stem=None, count=3):
    """``count`` shards and their index."""
    stem = stem or {".bin": "pytorch_model"}.get(suffix, "model")
    named, places = list(weights().items()), {}
    for number in range(count):
        file = f"{stem}-{number + 1:05}-of-{count:05}{suffix}"
        shard = dict(named[number::count])
        places |= dict.fromkeys(shard, file)
        (save_file if suffix == ".safetensors" else torch.save)(shard, folder / file)
    ordered = {name: places[name] for name, _ in named}
    (folder / f"{stem}{suffix}.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": ordered})
    )
    (folder / "config.json").write_text('{"transformers_version": "4.50.0"}')
    return folder


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shards_are_read_by_their_index(tmp_path, suffix):
    found = huggingface.read(saved(tmp_path, suffix))
    same_tensors(found, weights())
    assert list(found.tensors) == list(weights())
    assert (found.format, found.writer, found.gaps, found.notes) == (Format.HUGGINGFACE, "transformers 4.50.0", (), ())
    assert set(found.files) == {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_shard_is_named_with_what_it_had(tmp_path, suffix):
    saved(tmp_path, suffix)
    lost = next(tmp_path.glob("*-00002-of-*"))
    lost.unlink()
    (gap,) = huggingface.read(tmp_path).gaps
    assert (gap.kind, gap.file) == ("missing", lost.name)
    assert gap.why == "it has 6 tensors by the index: seen, frozen.bias, blocks.0.mix.weight, ..."


def test_shards_without_their_index(tmp_path):
    saved(tmp_path, ".safetensors")
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    found = huggingface.read(tmp_path)
    assert [gap.file for gap in found.gaps] == ["model.safetensors.index.json", "model-00003-of-00003.safetensors"]
    assert len(found.tensors) == 13


def test_shards_of_two_checkpoints_without_an_index_are_refused(tmp_path):
    saved(tmp_path, ".safetensors")
    saved(tmp_path, ".safetensors", count=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointUnreadable, match="shards of two checkpoints, of 2 and 3 files"):
        huggingface.read(tmp_path)


def test_an_index_that_does_not_fit_its_shards(tmp_path):
    saved(tmp_path, ".safetensors")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["new.weight"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    (gap,) = huggingface.read(tmp_path).gaps
    assert gap.why == "the index says that new.weight is in it, and it is not"


@pytest.mark.parametrize("place", ["../a.safetensors", "/etc/passwd", "a\0b", ""])
def test_an_index_never_leads_out_of_the_folder(tmp_path, place):
    saved(tmp_path, ".safetensors")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["new.weight"] = place
    path.write_text(json.dumps(index))
    (gap,) = huggingface.read(tmp_path).gaps
    assert (gap.kind, gap.file) == ("unreadable", path.name)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": 3}', "{" * 4000])
def test_an_index_that_is_none(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointUnreadable, match="the index cannot be read"):
        huggingface.read(tmp_path)


def test_safetensors_count_before_bin_and_that_is_said(tmp_path):
    saved(tmp_path, ".bin")
    saved(tmp_path, ".safetensors")
    (note,) = huggingface.read(tmp_path).notes
    assert note.startswith("model.safetensors.index.json is read; pytorch_model.bin.index.json is there, too")


def test_what_the_trainer_adds(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(module, step).backward()
        optimizer.step()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save({"last_epoch": 3}, tmp_path / "scheduler.pt")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 30, "epoch": 1.5, "log_history": []}')
    for rank in range(4):
        torch.save({"cpu": torch.get_rng_state()}, tmp_path / f"rng_state_{rank}.pth")
    found = huggingface.read(tmp_path)
    same_tensors(found, module.state_dict())
    same_optimizer(found, {n: optimizer.state[p] for n, p in module.named_parameters() if p in optimizer.state})
    assert (found.step, found.world_size) == (30, 4)
    assert found.values == {"scheduler.last_epoch": 3, "epoch": 1.5, "global_step": 30}


def test_an_optimizer_whose_order_safetensors_lost_is_left_out_and_said(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    loss_of(module, 0).backward()
    optimizer.step()
    save_file(weights(), tmp_path / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    found = huggingface.read(tmp_path)
    assert (found.optimizer, found.step) == (None, 1)
    assert "does not keep the parameters' order" in found.notes[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_folder_in_which_nothing_can_be_read(tmp_path, suffix):
    (tmp_path / f"{'model' if suffix == '.safetensors' else 'pytorch_model'}{suffix}").write_bytes(b"none")
    assert huggingface.recognises(tmp_path) is Format.HUGGINGFACE
    with pytest.raises(CheckpointUnreadable):
        huggingface.read(tmp_path)
