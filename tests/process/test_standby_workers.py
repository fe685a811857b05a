"""Standby workers with real processes on gloo."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.process.launched import LIMIT_S, wait_gone

HERE = Path(__file__).parent
PYTHON_RECORDER = ("--recorder", "python")

pytestmark = pytest.mark.slow


def standby_workers(job):
    """Return the standby workers, oldest first."""
    workers = []
    for process in psutil.Process(job.process.pid).children():
        try:
            if "HOLDFAST_SPARE" in process.environ():
                workers.append(process)
        except psutil.Error:
            pass
    return workers


def wait_for_standby_workers(job, count):
    """Wait until ``count`` standby workers have loaded torch and are idle."""
    until, before = time.monotonic() + LIMIT_S, {}
    while time.monotonic() < until:
        time.sleep(1)
        now = {each.pid: sum(each.cpu_times()[:2]) for each in standby_workers(job)}
        loaded = all("libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text() for pid in now)
        if len(now) == count and loaded and now == before:
            return set(now)
        before = now
    raise AssertionError(f"no {count} standby workers:\n{job.output}")


def read_states(folder, generation):
    return {
        rank: json.loads((folder / f"generation{generation}-rank{rank}.json").read_text())
        for rank in (0, 1)
    }


def test_a_restart_uses_standby_workers_in_the_same_state_as_new_processes(launch, tmp_path):
    arguments = (
        "--nproc-per-node",
        2,
        "--max-restarts",
        1,
        *PYTHON_RECORDER,
        HERE / "report_process_state.py",
        tmp_path,
    )
    job = launch(*arguments, new_ranks=True)
    waiting = wait_for_standby_workers(job, 2)
    (tmp_path / "go").touch()
    assert job.end() == 0, job.output
    pids = {int(line.split()[-1]) for line in job.output.splitlines() if "stepped as" in line}
    assert pids == waiting, job.output
    fresh, warm = read_states(tmp_path, 0), read_states(tmp_path, 1)
    assert warm == fresh
    for rank in (0, 1):
        logs = job.run / f"logs/generation1/rank{rank}"
        assert "stepped as" in (logs / "stdout.log").read_text()
        assert "complained" in (logs / "stderr.log").read_text()
    assert job.trace_files() == []


@pytest.mark.matrix
def test_standby_workers_die_with_a_killed_agent(launch, tmp_path):
    job = launch(
        "--nproc-per-node",
        2,
        "--max-restarts",
        1,
        *PYTHON_RECORDER,
        HERE / "report_process_state.py",
        tmp_path,
        new_ranks=True,
    )
    wait_for_standby_workers(job, 2)
    family = job.family()
    assert job.send(signal.SIGKILL).end() == -signal.SIGKILL
    assert wait_gone(family, limit_s=45) == []


STEPS = """
import os, time
{before}
import torch
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
for step in range(40):
    optimizer.step()
    time.sleep(0.05)
"""


def test_no_standby_workers_for_a_script_that_sets_variables_before_torch(launch, tmp_path):
    (tmp_path / "sets.py").write_text(STEPS.format(before="os.environ['OMP_NUM_THREADS'] = '3'"))
    job = launch("--max-restarts", "1", *PYTHON_RECORDER, tmp_path / "sets.py", new_ranks=True)
    assert job.end() == 0
    assert (
        job.output.count(
            "no standby workers: the script sets OMP_NUM_THREADS before it imports torch"
        )
        == 1
    )


@pytest.mark.matrix
@pytest.mark.parametrize("options", [("--max-restarts", "1", "--spares", "off"), ()])
def test_no_standby_workers_if_turned_off_or_without_restarts(options, launch, tmp_path):
    (tmp_path / "steps.py").write_text(STEPS.format(before=""))
    job = launch(*options, *PYTHON_RECORDER, tmp_path / "steps.py", new_ranks=True).wait_for(
        "generation 0"
    )
    count = 0
    while job.process.poll() is None:
        count += len(standby_workers(job))
        time.sleep(0.1)
    assert (job.end(), count) == (0, 0), job.output
