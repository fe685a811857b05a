"""Hugging Face folders: indexed shards, missing files, Trainer state."""

import json

import pytest
import torch
from safetensors.torch import save_file

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats.frameworks import huggingface
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors

SUFFIXES = (".safetensors", ".bin")


def weights():
    return {
        name: each.clone() for name, each in model().state_dict().items() if name != "head.weight"
    }


def saved(folder, suffix, stem=None, count=3):
    """Save ``count`` shards and their index."""
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
def test_indexed_shards(tmp_path, suffix):
    found = huggingface.read_contents(saved(tmp_path, suffix))
    same_tensors(found, weights())
    assert list(found.tensors) == list(weights())
    assert (found.format, found.writer, found.problems, found.notes) == (
        CheckpointFormat.HUGGINGFACE,
        "transformers 4.50.0",
        (),
        (),
    )
    assert set(found.files) == {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_shard_is_reported_with_its_tensors(tmp_path, suffix):
    saved(tmp_path, suffix)
    lost = next(tmp_path.glob("*-00002-of-*"))
    lost.unlink()
    (problem,) = huggingface.read_contents(tmp_path).problems
    assert (problem.kind, problem.file) == ("missing", lost.name)
    assert (
        problem.why
        == "the index lists 6 tensors in it: seen, frozen.bias, blocks.0.mix.weight, ..."
    )


def test_shards_without_their_index(tmp_path):
    saved(tmp_path, ".safetensors")
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    found = huggingface.read_contents(tmp_path)
    assert [problem.file for problem in found.problems] == [
        "model.safetensors.index.json",
        "model-00003-of-00003.safetensors",
    ]
    assert len(found.tensors) == 13


def test_mixed_shards_without_index_are_refused(tmp_path):
    saved(tmp_path, ".safetensors")
    saved(tmp_path, ".safetensors", count=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointUnreadable, match=r"shards of two checkpoints \(2 and 3 files\)"):
        huggingface.read_contents(tmp_path)


def test_index_contradicting_its_shards(tmp_path):
    saved(tmp_path, ".safetensors")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["new.weight"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    (problem,) = huggingface.read_contents(tmp_path).problems
    assert problem.why == "the index lists new.weight in it, but the file does not contain it"


@pytest.mark.parametrize("place", ["../a.safetensors", "/etc/passwd", "a\0b", ""])
def test_index_outside_the_folder(tmp_path, place):
    saved(tmp_path, ".safetensors")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["new.weight"] = place
    path.write_text(json.dumps(index))
    (problem,) = huggingface.read_contents(tmp_path).problems
    assert (problem.kind, problem.file) == ("unreadable", path.name)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": 3}', "{" * 4000])
def test_invalid_index(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointUnreadable, match="invalid index"):
        huggingface.read_contents(tmp_path)


def test_safetensors_take_precedence_with_a_note(tmp_path):
    saved(tmp_path, ".bin")
    saved(tmp_path, ".safetensors")
    (note,) = huggingface.read_contents(tmp_path).notes
    assert note.startswith(
        "reading model.safetensors.index.json; ignoring pytorch_model.bin.index.json"
    )


def test_trainer_state(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(module, step).backward()
        optimizer.step()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save({"last_epoch": 3}, tmp_path / "scheduler.pt")
    (tmp_path / "trainer_state.json").write_text(
        '{"global_step": 30, "epoch": 1.5, "log_history": []}'
    )
    for rank in range(4):
        torch.save({"cpu": torch.get_rng_state()}, tmp_path / f"rng_state_{rank}.pth")
    found = huggingface.read_contents(tmp_path)
    same_tensors(found, module.state_dict())
    same_optimizer(
        found, {n: optimizer.state[p] for n, p in module.named_parameters() if p in optimizer.state}
    )
    assert (found.step, found.world_size) == (30, 4)
    assert found.values == {"scheduler.last_epoch": 3, "epoch": 1.5, "global_step": 30}


def test_optimizer_without_order_is_omitted_with_a_note(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    loss_of(module, 0).backward()
    optimizer.step()
    save_file(weights(), tmp_path / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    found = huggingface.read_contents(tmp_path)
    assert (found.optimizer, found.step) == (None, 1)
    assert "does not preserve parameter order" in found.notes[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unreadable_folder(tmp_path, suffix):
    (tmp_path / f"{'model' if suffix == '.safetensors' else 'pytorch_model'}{suffix}").write_bytes(
        b"none"
    )
    assert huggingface.detect_format(tmp_path) is CheckpointFormat.HUGGINGFACE
    with pytest.raises(CheckpointUnreadable):
        huggingface.read_contents(tmp_path)
