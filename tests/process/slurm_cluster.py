"""A real Slurm of two nodes on this machine, started in a folder of the test if it is installed.

On Debian: ``apt-get install --no-install-recommends slurm-wlm munge``. slurmd must be started by root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import ExitStack, contextmanager

import pytest

from tests.ports import free_port
from tests.process.nodes import LIMIT_S, Node, wait

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
MISSING = [
    name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name, path=PATH)
]


def skip_without_slurm():
    """Skip the calling module where the cluster cannot be started."""
    if MISSING or os.geteuid():
        reason = (
            f"{', '.join(MISSING)} not installed" if MISSING else "slurmd must be started by root"
        )
        pytest.skip(reason, allow_module_level=True)


#: The job's number gives the port of `holdfast submit slurm`, 29500 + N % 3000: from here on and
#: below the ephemeral range, no other test uses it.
FIRST_PORT, PORTS_PER_WORKER = 32_000, 60

CONFIGURATION = """
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
FirstJobId={first_job}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


class Cluster:
    """Two compute nodes and a login node, each with its own processes."""

    def __init__(self, folder, head):
        self.folder, self.head = folder, head

    def srun(self, *words):
        return self.head.start("srun", *words)

    @property
    def variables(self):
        """Return the environment of Slurm's commands."""
        return {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def query(self, *words):
        done = subprocess.run(
            words, env=self.variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return done.stdout.split()


@contextmanager
def slurm_cluster(tmp_path):
    """Yield a running cluster; ends all its processes afterwards."""
    (tmp_path / "munge.key").write_bytes(os.urandom(1024))
    (tmp_path / "munge.key").chmod(0o600)
    for name in ("state", "spool.127.0.0.1", "spool.127.0.0.2"):
        (tmp_path / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (tmp_path / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=tmp_path,
            host=host,
            ports=[free_port() for _ in range(3)],
            first_job=free_port(FIRST_PORT, PORTS_PER_WORKER) - 29_500,
        )
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
            lambda: created.query("sinfo", "-h", "-N", "-p", "all", "-o", "%t") == ["idle", "idle"],
            control.errors,
        )
        yield created
