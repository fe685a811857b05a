"""`holdfast attach` under torchrun, under srun and over ssh: one verdict over several nodes."""

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

from tests.faults.specimens.expected import guilty_line, place
from tests.process.nodes import LIMIT_S, Node, wait

pytestmark = pytest.mark.slow
TORCHRUN = ("-m", "torch.distributed.run")
ATTACH = ("-m", "holdfast", "attach", "--json")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun_arguments(nodes, at, port):
    """Return the torchrun command for one node."""
    rendezvous = (
        "--nnodes",
        nodes,
        "--node-rank",
        at,
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
    )
    return (*TORCHRUN, *rendezvous)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Start two nodes with two ranks each; rank 2, on the second node, sleeps."""
    tmp_path, port = tmp_path_factory.mktemp("nodes"), free_port()
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Node(tmp_path / f"n{at}", OMP_NUM_THREADS="1")) for at in range(2)
        ]
        ranks = [
            node.fork(*torchrun_arguments(2, at, port), "--nproc-per-node", 2, place("rank_sleeps"))
            for at, node in enumerate(nodes)
        ]
        wait(lambda: "step 20" in "".join(each.output() for each in ranks), ranks[0].errors)
        time.sleep(2)  # the other ranks reach the collective
        yield nodes


def report_of(first):
    assert first.errors() == ""
    (line,) = first.output().splitlines()
    return json.loads(line)


def root_of(report):
    root = report["verdict"]["root"]
    return root["cause"], root["subject"]["rank"], root["subject"]["line"]


EXPECTED = ("rank-missing-collective", 2, guilty_line("rank_sleeps"))


def test_torchrun_copies_print_one_verdict(job):
    port = free_port()
    copies = [node.fork(*torchrun_arguments(2, at, port), *ATTACH) for at, node in enumerate(job)]
    assert [each.status() for each in copies] == [0, 0]
    report = report_of(copies[0])
    assert root_of(report) == EXPECTED
    assert [state["rank"] for state in report["samples"]["ranks"]] == [0, 1, 2, 3]
    assert not any("hosts" in text for text in report["verdict"]["unseen"])
    assert copies[1].output() == ""


def attach_in_step(at, nodes=2, local=0):
    """Return the command with the environment that srun sets for its tasks."""
    variables = {
        "SLURM_JOB_ID": "71",
        "SLURM_STEP_ID": "3",
        "SLURM_NODEID": at,
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]",
        "SLURM_LOCALID": local,
    }
    return ("env", *(f"{name}={text}" for name, text in variables.items()), sys.executable, *ATTACH)


def test_srun_copies_print_one_verdict(job):
    first, second, idle = (
        node.start(*attach_in_step(at, local=local), called="slurmstepd: [71.3]")
        for node, at, local in ((job[0], 0, 0), (job[1], 1, 0), (job[1], 1, 1))
    )
    assert [each.status() for each in (first, second, idle)] == [1, 0, 0]
    assert root_of(report_of(first)) == EXPECTED
    assert [each.output() + each.errors() for each in (second, idle)] == ["", ""]


def test_launcher_variables_require_the_launcher_as_ancestor(job):
    by_hand = job[0].start(*attach_in_step(0))
    assert by_hand.status() == 3
    assert "inspect ranks 2-3" in report_of(by_hand)["verdict"]["root"]["message"]
    assert report_of(by_hand)["elapsed_s"] < 15  # no wait for other copies


# ---- over ssh, with a real sshd on each node

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SERVER = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
SetEnv PATH={path}
"""
CLIENT = """
Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  GlobalKnownHostsFile none
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
"""


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def ssh(tmp_path, job):
    """Return a folder with an `ssh` configured for the nodes n0, n1, and n2 without an sshd."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True
        )
    hosts = []
    for at, port in enumerate((free_port(), free_port(), free_port())):
        hosts.append(CLIENT.format(name=f"n{at}", port=port, folder=tmp_path))
        if at < len(job):
            config = tmp_path / f"sshd{at}"
            config.write_text(SERVER.format(port=port, folder=tmp_path, path=path))
            # sshd of root requires this folder; the mount is in the node's namespace only.
            ready = "" if os.geteuid() else "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && "
            server = job[at].start("sh", "-c", f"{ready}exec {SSHD} -D -e -f {config}")
            wait(lambda port=port: is_listening(port), server.errors)
    (tmp_path / "config").write_text("".join(hosts))
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    program.chmod(0o755)
    return tmp_path


@pytest.mark.skipif(not SSHD or not shutil.which("ssh"), reason="no sshd on this machine")
def test_hosts_over_ssh_yield_one_verdict(ssh):
    done = subprocess.run(
        [sys.executable, *ATTACH, "--hosts", "n0,n1,n2"],
        env={**os.environ, "PATH": f"{ssh}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert root_of(report) == EXPECTED
    assert [state["rank"] for state in report["samples"]["ranks"]] == [0, 1, 2, 3]
    (unseen,) = (text for text in report["verdict"]["unseen"] if "host n2" in text)
    assert "Connection refused" in unseen
