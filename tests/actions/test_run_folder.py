"""The folder of a run: where boxes lie, where they go, and what is left behind (nothing)."""

import os
import subprocess
import sys

import msgspec
import pytest

from holdfast.actions import run_folder
from holdfast.actions.run_folder import Owner, RunFolder, box_bytes, take_over
from holdfast.blackbox import BoxWriter
from holdfast.errors import BadValue


@pytest.fixture
def shm(tmp_path):
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
def folder(tmp_path, shm):
    return RunFolder(tmp_path / "runs", workers=2, records=64, shm=shm)


def write_boxes(folder):
    for rank in (0, 1):
        folder.box(rank).write_text(f"box {rank}")
        (folder.boxes / f"rank{rank}.box.stacks").write_text("")


def test_boxes_lie_in_shared_memory_while_the_job_runs(folder, shm):
    assert (folder.boxes, folder.trouble) == (shm / f"holdfast-{folder.name}", "")
    assert folder.box(3) == folder.boxes / "rank3.box"
    assert folder.boxes.stat().st_mode & 0o077 == 0
    assert folder.logs.is_dir()


def test_a_box_is_as_large_as_we_reckon(tmp_path):
    writer = BoxWriter(tmp_path / "rank0.box", rank=0, world_size=1, records=64)
    assert writer.path.stat().st_size == box_bytes(64)


def test_boxes_of_a_failure_are_moved(folder):
    write_boxes(folder)
    assert folder.keep_boxes(folder.incidents / "0/boxes") == ""
    kept = {path.name: path.read_text() for path in (folder.incidents / "0/boxes").iterdir()}
    assert kept == {"rank0.box": "box 0", "rank1.box": "box 1"}
    assert list(folder.boxes.glob("rank*")) == []


def test_a_copy_made_at_the_verdict_is_better_evidence_than_the_box_at_the_end(folder):
    write_boxes(folder)
    copies = folder.incidents / "0/boxes"
    copies.mkdir(parents=True)
    (copies / "rank1.box").write_text("at the verdict")
    folder.keep_boxes(copies)
    assert {path.name: path.read_text() for path in copies.iterdir()} == {
        "rank0.box": "box 0",
        "rank1.box": "at the verdict",
    }


def test_boxes_that_cannot_be_kept_do_not_stay_in_shared_memory_either(folder):
    write_boxes(folder)
    (folder.path / "taken").write_text("a file where a folder is wanted")
    assert "taken" in folder.keep_boxes(folder.path / "taken/boxes")
    assert list(folder.boxes.glob("rank*")) == []


def test_nothing_is_left_in_shared_memory(folder, shm):
    write_boxes(folder)
    folder.close()
    folder.close()
    assert list(shm.iterdir()) == []
    assert folder.path.is_dir()


def test_without_shared_memory_the_boxes_lie_in_the_runs_folder(tmp_path):
    folder = RunFolder(tmp_path / "runs", workers=2, records=64, shm=tmp_path / "missing")
    assert folder.boxes == folder.path / "boxes"
    assert folder.trouble == f"{tmp_path / 'missing'}: no such file or directory"


def test_full_shared_memory_is_not_filled_further(tmp_path, shm, monkeypatch):
    state = os.statvfs(shm)
    full = os.statvfs_result((*state[:4], 0, *state[5:]))
    monkeypatch.setattr(run_folder.os, "statvfs", lambda _: full)
    folder = RunFolder(tmp_path / "runs", workers=2, records=64, shm=shm)
    assert folder.boxes == folder.path / "boxes"
    assert "has 0.0 MB left" in folder.trouble


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path, shm):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="--run-dir"):
        RunFolder(tmp_path / "file", workers=1, records=64, shm=shm)


def test_incidents_are_numbered(folder):
    assert [folder.new_incident().name for _ in range(3)] == ["0", "1", "2"]


def leftover(shm, name, owner):
    (shm / name).mkdir()
    (shm / name / "agent").write_bytes(msgspec.json.encode(owner))
    (shm / name / "rank0.box").write_text("")
    return shm / name


def test_what_a_killed_agent_left_is_removed_and_nothing_else(shm, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    me = Owner.me()
    stale = leftover(shm, "holdfast-stale", msgspec.structs.replace(me, pid=ended.pid))
    reused = leftover(shm, "holdfast-reused", msgspec.structs.replace(me, started=me.started - 1))
    kept = [
        leftover(shm, "holdfast-mine", me),
        leftover(shm, "holdfast-container", Owner(pid=ended.pid, started=1, namespace="pid:[1]")),
        leftover(shm, "other", msgspec.structs.replace(me, pid=ended.pid)),
    ]
    (shm / "holdfast-unowned").mkdir()
    RunFolder(tmp_path / "runs", workers=1, records=64, shm=shm)
    assert not stale.exists()
    assert not reused.exists()
    assert all(path.exists() for path in kept)
    assert (shm / "holdfast-unowned").exists()


def test_what_somebody_took_over_stays(shm, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    orphaned = leftover(shm, "holdfast-orphaned", msgspec.structs.replace(Owner.me(), pid=ended.pid))
    take_over(orphaned)
    RunFolder(tmp_path / "runs", workers=1, records=64, shm=shm)
    assert (orphaned / "rank0.box").exists()
