"""Shared memory of killed processes is removed, and no other shared memory."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.launcher.elastic import termination
from holdfast.watcher import shared_memory_cleanup

#: Creates a semaphore, like queues and locks of spawned processes, and prints its name.
SPAWNS = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(1000)
"""


def test_the_resource_tracker_removes_semaphores_of_a_killed_worker():
    worker = subprocess.Popen(
        [sys.executable, "-c", SPAWNS], start_new_session=True, stdout=subprocess.PIPE
    )
    semaphore = Path(
        "/dev/shm", f"sem.{worker.stdout.readline().decode().strip().removeprefix('/')}"
    )
    assert semaphore.exists()
    until = time.monotonic() + 30
    family = termination.select_family([worker.pid], termination.read_process_table())
    while not any(shared_memory_cleanup.can_clean_up(pid) for pid in family):
        assert time.monotonic() < until  # forked, before exec
        family = termination.select_family([worker.pid], termination.read_process_table())
    worker.kill()
    termination.terminate([worker], signal_number=signal.SIGTERM, grace_s=0)
    worker.stdout.close()
    assert not semaphore.exists()
    assert not family.keys() & {
        pid for pid, each in termination.read_process_table().items() if each.state not in "ZX"
    }


@pytest.mark.parametrize("pid", [1 << 22, os.getpid()], ids=["of no process", "its own"])
def test_other_processes_are_not_cleaners(pid):
    assert not shared_memory_cleanup.can_clean_up(pid)


def test_deepspeed_buffers_of_the_rendezvous_are_removed(tmp_path):
    prefix = f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_"
    own = [f"{prefix}29500_0", f"{prefix}29500_1", f"{prefix}29500_10"]
    others = [
        f"{prefix}29501_0",
        f"{prefix}295000_0",
        "deepspeed_allreduce_buffer_77777_127.0.0.1_29500_0",
        "sem.mp-1",
    ]
    for name in own + others:
        (tmp_path / name).touch()
    shared_memory_cleanup.remove_shared_memory("127.0.0.1", 29500, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_an_address_is_not_used_as_a_pattern(tmp_path):
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_[fe80]_1_0"
    (tmp_path / name).touch()
    shared_memory_cleanup.remove_shared_memory("*", 1, tmp_path)
    assert (tmp_path / name).exists()
    shared_memory_cleanup.remove_shared_memory("[fe80]", 1, tmp_path)
    assert not (tmp_path / name).exists()
