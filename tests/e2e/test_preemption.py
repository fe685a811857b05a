"""A scheduler warns `holdfast run`: all ranks save at one step and leave in time, and the next run goes on there."""

import re
import signal
import time
from pathlib import Path

import pytest

from holdfast import manifest
from tests.e2e.launched import Launched

SCRIPT = Path(__file__).with_name("preempted.py")
pytestmark = pytest.mark.slow


def steps(job, rank):
    return [int(number) for number in re.findall(rf"rank {rank} step (\d+)", job.output)]


@pytest.mark.parametrize(("word", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_saved_where_the_scheduler_warned_and_resumed_there(tmp_path, word, status):
    job = Launched(tmp_path / "one", "--standalone", "--nproc-per-node", 2, SCRIPT, 100_000, HOLDFAST_GRACE_S="40")
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
    assert "all ranks save before step" in job.output
    if word == signal.SIGTERM:
        return

    again = Launched(tmp_path / "one", "--standalone", "--nproc-per-node", 2, SCRIPT, step + 3)
    assert again.end() == 0, again.output
    for rank in (0, 1):
        assert f"rank {rank} resumed {step}" in again.output
        assert steps(again, rank) == [step + 1, step + 2, step + 3]
