from __future__ import annotations

import os
import threading

import pytest

from holdfast.errors import MissingFile
from holdfast.report import files
from holdfast.report.files import write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    target = tmp_path / "verdict.json"
    target.write_text("old")
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["verdict.json"]  # noqa: PTH208 - names are what is asked


def test_the_mode_follows_the_umask_as_for_any_new_file(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    write_whole(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == ordinary.stat().st_mode


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "verdict.json"
    target.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(MissingFile, match="no space left on device"):
        write_whole(target, b"new")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["verdict.json"]


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(MissingFile) as caught:
        write_whole(tmp_path / "nowhere" / "verdict.json", b"")
    assert "its folder does not exist" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_the_way_is_one_sentence(tmp_path):
    with pytest.raises(MissingFile, match="is a directory"):
        write_whole(tmp_path, b"")


def test_a_link_keeps_pointing_where_it_did(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_pipe_is_written_to_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"through the pipe")
    reader.join(10)
    assert heard == [b"through the pipe"]
    assert pipe.is_fifo()
