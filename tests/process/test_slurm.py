"""`srun holdfast attach`, `check` and `run` under a real Slurm of two nodes, started here if it is installed.

See ``slurm_cluster.py``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.process.nodes import wait
from tests.process.slurm_cluster import skip_without_slurm, slurm_cluster

pytestmark = pytest.mark.slow
skip_without_slurm()

#: Ranks are numbered by Slurm; rank 2, on the second node, never enters the sixth all_reduce.
PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=world)
for step in range(100):
    if step == 5 and rank == 2:
        print("asleep", flush=True)
        time.sleep(3600)  # GUILTY
    dist.all_reduce(torch.ones(4))
"""
LINE = next(at for at, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith("# GUILTY"))


@pytest.fixture
def cluster(tmp_path):
    with slurm_cluster(tmp_path) as started:
        yield started


def test_attach_with_one_task_per_node_prints_one_verdict(cluster):
    program = cluster.folder / "train.py"
    program.write_text(PROGRAM)
    port = free_port()
    ranks = cluster.srun(
        "-N2", "--ntasks-per-node=2", "--overcommit", sys.executable, program, port
    )
    wait(lambda: "asleep" in ranks.output(), ranks.errors)
    time.sleep(2)  # the others enter the call
    (number,) = cluster.query("squeue", "-h", "-o", "%A")
    inside = ("--overlap", "--jobid", number, "-N2", "--ntasks-per-node=1")
    attached = cluster.srun(*inside, sys.executable, "-m", "holdfast", "attach", "--json")
    assert attached.status() == 1
    (line,) = attached.output().splitlines()
    reports = json.loads(line)
    root = reports["verdict"]["root"]
    assert (root["cause"], root["subject"]["rank"], root["subject"]["line"]) == (
        "rank-missing-collective",
        2,
        LINE,
    )
    assert [state["rank"] for state in reports["samples"]["ranks"]] == [0, 1, 2, 3]
    assert reports["job"]["launcher"] == "srun"


def test_check_covers_all_hosts_of_an_allocation(cluster):
    """Use this machine as both nodes; world size, rank, endpoint and names come from Slurm."""
    output = cluster.folder / "output"  # one file per task: srun mixes long lines of several tasks
    checked = cluster.srun(
        "-N2",
        "--ntasks-per-node=1",
        f"--output={output}%t",
        sys.executable,
        "-m",
        "holdfast",
        "check",
        "--json",
    )
    checked.status()
    reports = [json.loads(Path(f"{output}{task}").read_text()) for task in range(2)]
    assert [each["nodes"] for each in reports] == [2, 2]
    assert [len(each["hosts"]) for each in reports] == [2, 2]
    assert {tuple(each["matrix"]["rows"]) for each in reports} == {("-.", ".-")}
    assert [each["stages"][-1]["name"] for each in reports] == ["all-reduce of 2"] * 2


def test_ranks_save_and_exit_on_slurms_warning(cluster):
    """Send USR1 with scancel, which signals the same processes as `--signal=USR1@120`."""
    script = Path(__file__).with_name("preempted.py")
    run = cluster.srun(
        "-N1",
        "-n1",
        f"--chdir={cluster.folder}",
        sys.executable,
        "-m",
        "holdfast",
        "run",
        "--standalone",
        "--nproc-per-node=2",
        script,
        "100000",
        "10000",
        "0",
    )
    wait(
        lambda: "rank 0 step 10" in run.output() and "rank 1 step 10" in run.output(),
        run.errors,
    )
    (number,) = cluster.query("squeue", "-h", "-o", "%A")
    cluster.query("scancel", "--signal=USR1", f"{number}.0")

    assert run.status() == 138
    (saved,) = (cluster.folder / "ckpts").glob("step-*")
    assert (
        f"all ranks save at step {int(saved.name.removeprefix('step-'))} and exit"
        in run.output() + run.errors()
    )
