from __future__ import annotations

import os
import threading

import pytest

from holdfast.core import atomic_files
from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import MissingFile


def test_a_file_is_replaced_without_leftovers(tmp_path):
    target = tmp_path / "verdict.json"
    target.write_text("old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["verdict.json"]  # noqa: PTH208 - names are compared


def test_the_mode_follows_the_umask_as_for_any_new_file(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    write_atomic(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == ordinary.stat().st_mode


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "verdict.json"
    target.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "fsync", full)
    with pytest.raises(MissingFile, match="no space left on device"):
        write_atomic(target, b"new")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["verdict.json"]


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(MissingFile) as caught:
        write_atomic(tmp_path / "nowhere" / "verdict.json", b"")
    assert "its folder does not exist" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_the_way_is_one_sentence(tmp_path):
    with pytest.raises(MissingFile, match="is a directory"):
        write_atomic(tmp_path, b"")


def test_a_symbolic_link_is_kept(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_pipe_is_written_directly(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, b"through the pipe")
    reader.join(10)
    assert received == [b"through the pipe"]
    assert pipe.is_fifo()
