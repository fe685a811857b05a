"""Spare processes: a restart uses them, the script cannot tell, and none is left behind. Real processes, gloo."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.launched import LIMIT_S, gone

HERE = Path(__file__).parent
PYTHON_RECORDER = ("--recorder", "python")

pytestmark = pytest.mark.slow


def spares(job):
    """The processes that wait to become workers, by start."""
    found = []
    for process in psutil.Process(job.process.pid).children():
        try:
            if "HOLDFAST_SPARE" in process.environ():
                found.append(process)
        except psutil.Error:
            pass
    return found


def wait_for_spares(job, count):
    """Until so many have loaded torch and have nothing more to do."""
    until, before = time.monotonic() + LIMIT_S, {}
    while time.monotonic() < until:
        time.sleep(1)
        now = {each.pid: sum(each.cpu_times()[:2]) for each in spares(job)}
        loaded = all("libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text() for pid in now)
        if len(now) == count and loaded and now == before:
            return set(now)
        before = now
    raise AssertionError(f"no {count} spares:\n{job.output}")


def told(folder, generation):
    return {
        rank: json.loads((folder / f"generation{generation}-rank{rank}.json").read_text()) for rank in (0, 1)
    }  # fmt: skip


def test_a_restart_uses_spares_and_the_script_cannot_tell(launch, tmp_path):
    arguments = ("--nproc-per-node", 2, "--max-restarts", 1, *PYTHON_RECORDER, HERE / "seen_from_inside.py", tmp_path)
    job = launch(*arguments)
    waiting = wait_for_spares(job, 2)
    (tmp_path / "go").touch()
    assert job.end() == 0, job.output
    pids = {int(line.split()[-1]) for line in job.output.splitlines() if "stepped as" in line}
    assert pids == waiting, job.output
    fresh, warm = told(tmp_path, 0), told(tmp_path, 1)
    assert warm == fresh
    for rank in (0, 1):
        logs = job.run / f"logs/generation1/rank{rank}"
        assert "stepped as" in (logs / "stdout.log").read_text()
        assert "complained" in (logs / "stderr.log").read_text()
    assert job.boxes() == []


def test_spares_end_with_the_job_and_with_an_agent_that_is_killed(launch, tmp_path):
    job = launch("--nproc-per-node", 2, *PYTHON_RECORDER, HERE / "seen_from_inside.py", tmp_path)
    wait_for_spares(job, 2)
    family = job.family()
    assert job.send(signal.SIGKILL).end() == -signal.SIGKILL
    assert gone(family, limit_s=45) == []


STEPS = """
import os, time
{before}
import torch
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
for step in range(40):
    optimizer.step()
    time.sleep(0.05)
"""


def test_a_script_that_sets_variables_before_torch_gets_no_spares(launch, tmp_path):
    (tmp_path / "sets.py").write_text(STEPS.format(before="os.environ['OMP_NUM_THREADS'] = '3'"))
    job = launch(*PYTHON_RECORDER, tmp_path / "sets.py")
    assert job.end() == 0
    assert job.output.count("no spare processes: the script sets OMP_NUM_THREADS before it imports torch") == 1


def test_spares_may_be_turned_off(launch, tmp_path):
    (tmp_path / "steps.py").write_text(STEPS.format(before=""))
    job = launch("--spares", "off", *PYTHON_RECORDER, tmp_path / "steps.py").wait_for("generation 0")
    seen = 0
    while job.process.poll() is None:
        seen += len(spares(job))
        time.sleep(0.1)
    assert (job.end(), seen) == (0, 0), job.output
