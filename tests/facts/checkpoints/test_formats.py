"""Which checkpoint a path stands for, and what is said where it is none, or several."""

import pytest
import torch
from safetensors.torch import save_file

from holdfast.errors import CheckpointUnreadable, MissingFile
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from tests.saved.plain_dcp import dcp_folder

STATE = {"w": torch.ones(2)}


def torch_file(path, state=STATE):
    path.parent.mkdir(exist_ok=True, parents=True)
    torch.save(state, path)
    return path


def test_nothing_there(tmp_path):
    with pytest.raises(MissingFile, match="no such file or folder"):
        formats.read(tmp_path / "none")


def test_of_no_format(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(CheckpointUnreadable, match="of no format that is known"):
            formats.detect(path)


@pytest.mark.parametrize("name", ["checkpoint-{}", "step_{:06}", "global_step{}", "epoch={}"])
def test_of_a_run_the_newest_counts(tmp_path, name):
    for number in (2, 10, 9):
        torch_file(tmp_path / name.format(number) / "pytorch_model.bin", {"w": torch.full((2,), number)})
    (tmp_path / name.format(11)).mkdir()  # nothing in it yet
    place = formats.find(tmp_path)
    assert (place.path.name, place.format) == (name.format(10), Format.HUGGINGFACE)
    assert formats.read(tmp_path).notes[0] == f"{name.format(10)} is the newest of 4 in {tmp_path.name}"


def test_two_series_are_not_chosen_from(tmp_path):
    torch_file(tmp_path / "checkpoint-1" / "pytorch_model.bin")
    torch_file(tmp_path / "other-7" / "pytorch_model.bin")
    with pytest.raises(CheckpointUnreadable, match="it holds 2 checkpoints: checkpoint-1, other-7; name one"):
        formats.detect(tmp_path)


def test_a_folder_with_a_single_file(tmp_path):
    torch_file(tmp_path / "best.pt")
    (tmp_path / "log.txt").write_text("loss 3")
    assert formats.find(tmp_path).path == tmp_path / "best.pt"


def test_a_folder_with_several_files_is_not_chosen_from(tmp_path):
    for name in "abcdef":
        torch_file(tmp_path / f"{name}.pt")
    with pytest.raises(CheckpointUnreadable, match=r"it holds 6 checkpoints: a\.pt, b\.pt, c\.pt, d\.pt, \.\.\.; name"):
        formats.detect(tmp_path)


def test_two_checkpoints_in_one_folder_are_named(tmp_path):
    dcp_folder(tmp_path)
    save_file(STATE, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointUnreadable, match="two checkpoints, one of dcp and one of huggingface"):
        formats.read(tmp_path)


def test_every_format_that_is_read_says_so_once():
    assert len(set(formats.READERS)) == len(formats.READERS)
    assert set(formats.BY_NUMBER) <= set(formats.READERS)
