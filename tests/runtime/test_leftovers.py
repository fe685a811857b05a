"""What killed processes leave in shared memory is removed, and nothing of anybody else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.runtime import ending, leftovers

#: Makes a semaphore as queues and locks do where processes are spawned, and tells its name.
SPAWNS = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(1000)
"""


def test_pythons_tracker_removes_the_semaphores_of_a_killed_worker():
    worker = subprocess.Popen([sys.executable, "-c", SPAWNS], start_new_session=True, stdout=subprocess.PIPE)
    semaphore = Path("/dev/shm", f"sem.{worker.stdout.readline().decode().strip().removeprefix('/')}")
    assert semaphore.exists()
    until = time.monotonic() + 30
    kin = ending.family([worker.pid], ending.processes())
    while not any(leftovers.cleans_up(pid) for pid in kin):
        assert time.monotonic() < until  # forked, and not yet another program
        kin = ending.family([worker.pid], ending.processes())
    worker.kill()
    ending.end([worker], word=signal.SIGTERM, patience_s=0)
    worker.stdout.close()
    assert not semaphore.exists()
    assert not kin.keys() & {pid for pid, each in ending.processes().items() if each.state not in "ZX"}


@pytest.mark.parametrize("pid", [1 << 22, os.getpid()], ids=["of nobody", "its own"])
def test_others_are_no_cleaners(pid):
    assert not leftovers.cleans_up(pid)


def test_buffers_of_deepspeed_go_with_the_ranks_that_met_there(tmp_path):
    mine = f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_"
    ours = [f"{mine}29500_0", f"{mine}29500_1", f"{mine}29500_10"]
    others = [f"{mine}29501_0", f"{mine}295000_0", "deepspeed_allreduce_buffer_77777_127.0.0.1_29500_0", "sem.mp-1"]
    for name in ours + others:
        (tmp_path / name).touch()
    leftovers.remove("127.0.0.1", 29500, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_an_address_is_no_pattern(tmp_path):
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_[fe80]_1_0"
    (tmp_path / name).touch()
    leftovers.remove("*", 1, tmp_path)
    assert (tmp_path / name).exists()
    leftovers.remove("[fe80]", 1, tmp_path)
    assert not (tmp_path / name).exists()
