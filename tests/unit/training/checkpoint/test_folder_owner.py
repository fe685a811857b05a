"""One folder, one job: the owner file, its refusal and its take-over."""

import os
import subprocess
import sys
import time

import msgspec
import pytest
import torch

import holdfast
from holdfast.core.errors import CheckpointFailed
from holdfast.training.checkpoint import folder_owner
from holdfast.training.checkpoint.folder_owner import FILE, CheckpointOwner, FolderLease
from holdfast.training.checkpoint.job_identity import host_name, start_ticks


def owner(**changes):
    fields = {"job": "run-a", "host": "elsewhere 1", "pid": 7, "started": 1, "since": time.time()}
    return CheckpointOwner(**{**fields, **changes})


def write(folder, found):
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(msgspec.json.encode(found))


def owner_pid(folder):
    return msgspec.json.decode((folder / FILE).read_bytes(), type=CheckpointOwner).pid


@pytest.fixture
def other_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n")


def test_a_live_job_in_the_folder_is_named_and_nothing_is_saved(tmp_path, other_process):
    pid = other_process.pid
    write(tmp_path, owner(host=host_name(), pid=pid, started=start_ticks(pid)))
    checkpoint = holdfast.Checkpoint(tmp_path, model=torch.nn.Linear(2, 2), asynchronous=False)
    for use in (checkpoint.claim, lambda: checkpoint.save(1)):
        with pytest.raises(CheckpointFailed, match=f"belongs to another job .run run-a, pid {pid}"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_job_that_died_on_this_host_is_replaced_at_once(tmp_path, other_process):
    # The process id exists, but now belongs to a process that started at another time.
    write(tmp_path, owner(host=host_name(), pid=other_process.pid))
    lease = FolderLease(tmp_path)
    lease.claim()
    assert owner_pid(tmp_path) == os.getpid()
    lease.release()
    assert not list(tmp_path.iterdir())


def test_an_owner_elsewhere_is_replaced_after_its_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_owner, "LEASE_S", 0.2)
    write(tmp_path, owner())
    lease = FolderLease(tmp_path)
    lease.claim()
    assert owner_pid(tmp_path) == os.getpid()
    lease.release()


def test_an_owner_elsewhere_that_renews_is_alive(tmp_path, monkeypatch):
    write(tmp_path, owner())
    renew = lambda _: write(tmp_path, owner(renewals=1))  # noqa: E731
    monkeypatch.setattr(folder_owner.time, "sleep", renew)
    with pytest.raises(CheckpointFailed, match="pid 7 on elsewhere, since"):
        FolderLease(tmp_path).claim()


def test_another_generation_of_the_job_replaces_the_first_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TRACE", "/dev/shm/run-a/rank0.trace")
    write(tmp_path, owner())
    lease = FolderLease(tmp_path)
    lease.claim()
    assert owner_pid(tmp_path) == os.getpid()
    lease.release()


def test_a_job_that_lost_the_folder_saves_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_owner, "RENEW_S", 0.01)
    lease = FolderLease(tmp_path)
    lease.claim()
    write(tmp_path, owner())
    with pytest.raises(CheckpointFailed, match="run run-a"):  # noqa: PT012
        while True:
            lease.claim()
            time.sleep(0.001)
    lease.release()
    assert owner_pid(tmp_path) == 7


def test_the_last_rank_leaves_no_owner(tmp_path):
    checkpoint = holdfast.Checkpoint(tmp_path, model=torch.nn.Linear(2, 2), asynchronous=False)
    checkpoint.save(1)
    assert owner_pid(tmp_path) == os.getpid()
    checkpoint.manager.finish()
    assert not (tmp_path / FILE).exists()
