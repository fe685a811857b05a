"""A scheduler warns `holdfast run`: all save at one step, leave in time, and the next run goes on there.

Also: after a rank's death the others come back from the copy in memory, which is gone at the end.
"""

import re
import signal
import time
from pathlib import Path

import pytest

from holdfast import manifest
from tests.e2e.launched import Launched

SCRIPT = Path(__file__).with_name("preempted.py")
TWO = ("--standalone", "--nproc-per-node", 2)
pytestmark = pytest.mark.slow


def steps(job, rank):
    return [int(number) for number in re.findall(rf"rank {rank} step (\d+)", job.output)]


@pytest.mark.parametrize(("word", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_saved_where_the_scheduler_warned_and_resumed_there(tmp_path, word, status):
    job = Launched(tmp_path / "one", *TWO, SCRIPT, 100_000, 10_000, 0, HOLDFAST_GRACE_S="40")
    job.wait_for(r"rank 0 step 10\b")
    begun = time.monotonic()
    job.send(word)
    assert job.end() == status, job.output
    assert time.monotonic() - begun < 40

    folder = job.folder / "ckpts"
    (saved,) = [path for path in folder.iterdir() if manifest.step_of(path)]
    assert not any(manifest.damages(saved, manifest.read(saved)))
    step = manifest.step_of(saved)
    assert (job.folder / "copy" / saved.name).is_dir()
    for rank in (0, 1):
        assert steps(job, rank) == list(range(1, step + 1))
    (run,) = re.findall(r"run folder runs/(\S+)", job.output)
    assert not list(Path("/dev/shm").glob(f"holdfast-{run}*"))
    assert "all ranks save at step" in job.output
    if word == signal.SIGTERM:
        return

    again = Launched(tmp_path / "one", *TWO, SCRIPT, step + 3, 10_000, 0)
    assert again.end() == 0, again.output
    for rank in (0, 1):
        assert f"rank {rank} resumed {step}" in again.output
        assert steps(again, rank) == [step + 1, step + 2, step + 3]


def test_a_restart_takes_the_copy_in_memory_which_the_run_removes(tmp_path):
    job = Launched(tmp_path / "one", "--max-restarts", 1, *TWO, SCRIPT, 30, 5, 18, "memory")
    assert job.end() == 0, job.output

    (run,) = re.findall(r"generation 0.*run folder runs/(\S+)", job.output)
    found = re.findall(r"rank \d resumed (\d+) from (\S+)", job.output)
    assert found[:2] == [("0", "nothing")] * 2
    (again,) = set(found[2:])
    assert len(found) == 4
    assert again[0] in ("5", "10", "15")  # what was declared and copied when rank 1 died
    assert again[1] == f"/dev/shm/holdfast-{run}/checkpoints/{manifest.name_of(int(again[0]))}"
    assert not list(Path("/dev/shm").glob(f"holdfast-{run}*"))
    assert (job.folder / "copy" / manifest.name_of(30)).is_dir()
