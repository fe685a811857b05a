"""`srun holdfast attach`, `check` and `run` under a real Slurm of two nodes, started here if it is installed.

On Debian: ``apt-get install --no-install-recommends slurm-wlm munge``, then run this file as root.
Slurm need not be configured or running: the test starts it in its own folder.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.process.nodes import LIMIT_S, Node, wait

pytestmark = pytest.mark.slow
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
MISSING = [
    name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name, path=PATH)
]
if MISSING or os.geteuid():
    reason = f"{', '.join(MISSING)} not installed" if MISSING else "slurmd must be started by root"
    pytest.skip(reason, allow_module_level=True)

CONFIGURATION = """
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
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


class Cluster:
    """Two compute nodes and a login node, each with its own processes."""

    def __init__(self, folder, head):
        self.folder, self.head = folder, head

    def srun(self, *words):
        return self.head.start("srun", *words)

    def query(self, *words):
        environment = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return done.stdout.split()


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "munge.key").write_bytes(os.urandom(1024))
    (tmp_path / "munge.key").chmod(0o600)
    for name in ("state", "spool.127.0.0.1", "spool.127.0.0.2"):
        (tmp_path / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (tmp_path / "slurm.conf").write_text(
        CONFIGURATION.format(folder=tmp_path, host=host, ports=[free_port() for _ in range(3)])
    )
    variables = {"SLURM_CONF": f"{tmp_path}/slurm.conf", "OMP_NUM_THREADS": "1", "PATH": PATH}
    with ExitStack() as stack:
        head, *nodes = (
            stack.enter_context(Node(tmp_path / name, **variables)) for name in ("head", "n1", "n2")
        )
        options = [
            f"--{name}={tmp_path}/munge.{end}"
            for name, end in (
                ("key-file", "key"),
                ("socket", "socket"),
                ("log-file", "log"),
                ("pid-file", "pid"),
                ("seed-file", "seed"),
            )
        ]
        munged = head.start("munged", "--foreground", "--force", *options)
        wait((tmp_path / "munge.socket").exists, munged.errors)
        control = head.start("slurmctld", "-D")
        for at, node in enumerate(nodes, 1):
            node.start("slurmd", "-D", "-N", f"127.0.0.{at}")
        created = Cluster(tmp_path, head)
        wait(
            lambda: created.query("sinfo", "-h", "-N", "-o", "%t") == ["idle", "idle"],
            control.errors,
        )
        yield created


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
