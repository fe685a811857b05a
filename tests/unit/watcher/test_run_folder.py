"""The run folder: location of trace files, their destination, and cleanup."""

import os
import subprocess
import sys

import msgspec
import pytest

from holdfast.core.errors import InvalidValue
from holdfast.core.trace_file import TraceWriter
from holdfast.watcher import run_folder
from holdfast.watcher.run_folder import FolderOwner, RunFolder, own_folder, trace_bytes


@pytest.fixture
def shm(tmp_path):
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
def folder(tmp_path, shm):
    return RunFolder(tmp_path / "runs", workers=2, records=64, shm=shm)


def write_traces(folder):
    for rank in (0, 1):
        folder.trace_file(rank).write_text(f"trace {rank}")
        (folder.traces / f"rank{rank}.trace.stacks").write_text("")


def test_traces_are_in_shared_memory_while_the_job_runs(folder, shm):
    assert (folder.traces, folder.trouble) == (shm / f"holdfast-{folder.name}", "")
    assert folder.trace_file(3) == folder.traces / "rank3.trace"
    assert folder.traces.stat().st_mode & 0o077 == 0
    assert folder.logs.is_dir()


def test_the_computed_size_is_that_of_a_trace_file(tmp_path):
    writer = TraceWriter(tmp_path / "rank0.trace", rank=0, world_size=1, records=64)
    assert writer.path.stat().st_size == trace_bytes(64)


def test_traces_of_a_failure_are_moved(folder):
    write_traces(folder)
    assert folder.keep_traces(folder.incidents / "0/traces") == ""
    kept = {path.name: path.read_text() for path in (folder.incidents / "0/traces").iterdir()}
    assert kept == {"rank0.trace": "trace 0", "rank1.trace": "trace 1"}
    assert list(folder.traces.glob("rank*")) == []


def test_a_copy_made_at_the_verdict_is_not_overwritten(folder):
    write_traces(folder)
    copies = folder.incidents / "0/traces"
    copies.mkdir(parents=True)
    (copies / "rank1.trace").write_text("at the verdict")
    folder.keep_traces(copies)
    assert {path.name: path.read_text() for path in copies.iterdir()} == {
        "rank0.trace": "trace 0",
        "rank1.trace": "at the verdict",
    }


def test_traces_that_cannot_be_kept_are_removed_from_shared_memory(folder):
    write_traces(folder)
    (folder.path / "taken").write_text("a file where a folder is wanted")
    assert "taken" in folder.keep_traces(folder.path / "taken/traces")
    assert list(folder.traces.glob("rank*")) == []


def test_close_leaves_nothing_in_shared_memory(folder, shm):
    write_traces(folder)
    folder.close()
    folder.close()
    assert list(shm.iterdir()) == []
    assert folder.path.is_dir()


def test_without_shared_memory_traces_are_in_the_run_folder(tmp_path):
    folder = RunFolder(tmp_path / "runs", workers=2, records=64, shm=tmp_path / "missing")
    assert folder.traces == folder.path / "traces"
    assert folder.trouble == f"{tmp_path / 'missing'}: no such file or directory"


def test_full_shared_memory_is_not_used(tmp_path, shm, monkeypatch):
    state = os.statvfs(shm)
    full = os.statvfs_result((*state[:4], 0, *state[5:]))
    monkeypatch.setattr(run_folder.os, "statvfs", lambda _: full)
    folder = RunFolder(tmp_path / "runs", workers=2, records=64, shm=shm)
    assert folder.traces == folder.path / "traces"
    assert "has 0.0 MB free" in folder.trouble


def test_an_impossible_run_folder_is_an_invalid_value(tmp_path, shm):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="--run-dir"):
        RunFolder(tmp_path / "file", workers=1, records=64, shm=shm)


def test_incidents_are_numbered(folder):
    assert [folder.new_incident().name for _ in range(3)] == ["0", "1", "2"]


def leftover(shm, name, owner):
    (shm / name).mkdir()
    (shm / name / "agent").write_bytes(msgspec.json.encode(owner))
    (shm / name / "rank0.trace").write_text("")
    return shm / name


def test_only_stale_folders_are_removed(shm, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    me = FolderOwner.current()
    stale = leftover(shm, "holdfast-stale", msgspec.structs.replace(me, pid=ended.pid))
    reused = leftover(shm, "holdfast-reused", msgspec.structs.replace(me, started=me.started - 1))
    kept = [
        leftover(shm, "holdfast-mine", me),
        leftover(
            shm, "holdfast-container", FolderOwner(pid=ended.pid, started=1, namespace="pid:[1]")
        ),
        leftover(shm, "other", msgspec.structs.replace(me, pid=ended.pid)),
    ]
    (shm / "holdfast-unowned").mkdir()
    RunFolder(tmp_path / "runs", workers=1, records=64, shm=shm)
    assert not stale.exists()
    assert not reused.exists()
    assert all(path.exists() for path in kept)
    assert (shm / "holdfast-unowned").exists()


def test_a_folder_with_a_new_owner_stays(shm, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    orphaned = leftover(
        shm, "holdfast-orphaned", msgspec.structs.replace(FolderOwner.current(), pid=ended.pid)
    )
    own_folder(orphaned)
    RunFolder(tmp_path / "runs", workers=1, records=64, shm=shm)
    assert (orphaned / "rank0.trace").exists()
