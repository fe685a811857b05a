"""With a torch whose elastic agent differs, the job runs without holdfast's agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked_programs import RunningProgram

JOB = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
# One write: without holdfast's agent, both ranks write to the launcher's output directly.
os.write(1, f"total {total.item()} {os.environ.get('HOLDFAST_TRACE')}\\n".encode())
dist.destroy_process_group()
"""
#: Runs holdfast with a torch whose agent lacks a method that ours overrides.
HOLDFAST = """
import sys
from holdfast.launcher.elastic import run_job
run_job.OVERRIDDEN_METHODS = (*run_job.OVERRIDDEN_METHODS, "_from_a_later_torch")
from holdfast.cli import main
sys.argv[0] = "holdfast"
main()
"""


@pytest.mark.slow
def test_a_torch_with_another_agent_runs_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "holdfast_run.py").write_text(HOLDFAST)
    options = ["run", "--standalone", "--nproc-per-node", "2", "--recorder", "python", "job.py"]
    done = RunningProgram("holdfast_run.py", *options, folder=tmp_path).result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("total 2.0 None") == 2, done.stdout
    assert "differs (no _from_a_later_torch)" in done.stderr
