"""Resolving a path to one checkpoint, and the errors for none or several."""

import pytest
import torch
from safetensors.torch import save_file

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.core.errors import CheckpointUnreadable, MissingFile
from tests.golden.checkpoints.plain_dcp import dcp_folder

STATE = {"w": torch.ones(2)}


def torch_file(path, state=STATE):
    path.parent.mkdir(exist_ok=True, parents=True)
    torch.save(state, path)
    return path


def test_missing_path(tmp_path):
    with pytest.raises(MissingFile, match="no such file or folder"):
        registry.read_checkpoint(tmp_path / "none")


def test_unrecognized_format(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(CheckpointUnreadable, match="not a recognized checkpoint format"):
            registry.detect_format(path)


@pytest.mark.parametrize("name", ["checkpoint-{}", "step_{:06}", "global_step{}", "epoch={}"])
def test_newest_of_a_run_is_used(tmp_path, name):
    for number in (2, 10, 9):
        torch_file(
            tmp_path / name.format(number) / "pytorch_model.bin", {"w": torch.full((2,), number)}
        )
    (tmp_path / name.format(11)).mkdir()  # still empty
    place = registry.locate_checkpoint(tmp_path)
    assert (place.path.name, place.format) == (name.format(10), CheckpointFormat.HUGGINGFACE)
    assert (
        registry.read_checkpoint(tmp_path).notes[0]
        == f"using {name.format(10)}, the newest of 4 in {tmp_path.name}"
    )


def test_two_series_are_ambiguous(tmp_path):
    torch_file(tmp_path / "checkpoint-1" / "pytorch_model.bin")
    torch_file(tmp_path / "other-7" / "pytorch_model.bin")
    with pytest.raises(
        CheckpointUnreadable, match="it contains 2 checkpoints: checkpoint-1, other-7; specify one"
    ):
        registry.detect_format(tmp_path)


def test_folder_with_one_file(tmp_path):
    torch_file(tmp_path / "best.pt")
    (tmp_path / "log.txt").write_text("loss 3")
    assert registry.locate_checkpoint(tmp_path).path == tmp_path / "best.pt"


def test_folder_with_several_files_is_ambiguous(tmp_path):
    for name in "abcdef":
        torch_file(tmp_path / f"{name}.pt")
    with pytest.raises(
        CheckpointUnreadable,
        match=r"it contains 6 checkpoints: a\.pt, b\.pt, c\.pt, d\.pt, \.\.\.; specify",
    ):
        registry.detect_format(tmp_path)


def test_two_formats_in_one_folder_are_refused(tmp_path):
    dcp_folder(tmp_path)
    save_file(STATE, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointUnreadable, match="two checkpoints: dcp and huggingface"):
        registry.read_checkpoint(tmp_path)


def test_every_format_has_one_reader():
    assert len(set(registry.READERS)) == len(registry.READERS)
    assert set(registry.NUMBERED_READERS) <= set(registry.READERS)
