"""Preemption: all ranks save at one step and exit in time, and the next run resumes there.

Also: after a rank's death the job resumes from the copy in memory, which is removed at the end.
"""

import re
import signal
import time
from pathlib import Path

import pytest

from holdfast.core import checkpoint_manifest
from tests.process.launched import Launched

SCRIPT = Path(__file__).with_name("preempted.py")
TWO = ("--standalone", "--nproc-per-node", 2)
pytestmark = pytest.mark.slow


def steps(job, rank):
    return [int(number) for number in re.findall(rf"rank {rank} step (\d+)", job.output)]


@pytest.mark.parametrize(
    ("signal_number", "status"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.matrix)],
)
def test_ranks_save_on_a_schedulers_warning_and_the_next_run_resumes(
    tmp_path, signal_number, status
):
    job = Launched(tmp_path / "one", *TWO, SCRIPT, 100_000, 10_000, 0, HOLDFAST_GRACE_S="40")
    job.wait_for(r"rank 0 step 10\b")
    start = time.monotonic()
    job.send(signal_number)
    assert job.end() == status, job.output
    assert time.monotonic() - start < 40

    folder = job.folder / "ckpts"
    (saved,) = [path for path in folder.iterdir() if checkpoint_manifest.step_of_folder(path)]
    assert not any(checkpoint_manifest.find_damage(saved, checkpoint_manifest.read_manifest(saved)))
    step = checkpoint_manifest.step_of_folder(saved)
    assert (job.folder / "copy" / saved.name).is_dir()
    for rank in (0, 1):
        assert steps(job, rank) == list(range(1, step + 1))
    (run,) = re.findall(r"run folder runs/(\S+)", job.output)
    assert not list(Path("/dev/shm").glob(f"holdfast-{run}*"))
    assert f"all ranks saved at step {step} and exited with status {status}" in job.output
    assert "the job failed" not in job.output
    if signal_number == signal.SIGTERM:
        return

    again = Launched(tmp_path / "one", *TWO, SCRIPT, step + 3, 10_000, 0)
    assert again.end() == 0, again.output
    for rank in (0, 1):
        assert f"rank {rank} resumed {step}" in again.output
        assert steps(again, rank) == [step + 1, step + 2, step + 3]


@pytest.mark.matrix
def test_a_restart_loads_the_copy_in_memory(tmp_path):
    job = Launched(tmp_path / "one", "--max-restarts", 1, *TWO, SCRIPT, 30, 5, 18, "memory")
    assert job.end() == 0, job.output

    (run,) = re.findall(r"generation 0.*run folder runs/(\S+)", job.output)
    resumed = re.findall(r"rank \d resumed (\d+) from (\S+)", job.output)
    assert resumed[:2] == [("0", "nothing")] * 2
    (again,) = set(resumed[2:])
    assert len(resumed) == 4
    assert again[0] in ("5", "10", "15")  # committed and copied when rank 1 died
    assert (
        again[1]
        == f"/dev/shm/holdfast-{run}/checkpoints/{checkpoint_manifest.folder_name(int(again[0]))}"
    )
    assert not list(Path("/dev/shm").glob(f"holdfast-{run}*"))
    assert (job.folder / "copy" / checkpoint_manifest.folder_name(30)).is_dir()
