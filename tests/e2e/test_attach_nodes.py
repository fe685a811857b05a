"""One verdict over several nodes: `holdfast attach` started once a node by torchrun, srun, or asked over ssh."""

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

from tests.e2e.nodes import LIMIT_S, Node, wait
from tests.specimens.expected import guilty_line, place

pytestmark = pytest.mark.slow
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
ATTACH = ("-m", "holdfast", "attach", "--json")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def across(nodes, at, port):
    """The words that start torchrun on one node of several."""
    place_of_it = ("--nnodes", nodes, "--node-rank", at, "--master-addr", "127.0.0.1", "--master-port", port)
    return (*TORCHRUN, *place_of_it)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two nodes with two ranks each, of which rank 2 sleeps on the second; looking changes nothing, one is enough."""
    tmp_path, port = tmp_path_factory.mktemp("nodes"), free_port()
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(tmp_path / f"n{at}", OMP_NUM_THREADS="1")) for at in range(2)]
        ranks = [
            node.start(*across(2, at, port), "--nproc-per-node", 2, place("rank_sleeps"))
            for at, node in enumerate(nodes)
        ]
        wait(lambda: "step 20" in "".join(each.output() for each in ranks), ranks[0].errors)
        time.sleep(2)  # they stop a step or two later
        yield nodes


def verdict_of(first):
    assert first.errors() == ""
    (line,) = first.output().splitlines()
    return json.loads(line)


def judged(said):
    root = said["verdict"]["root"]
    return root["cause"], root["subject"]["rank"], root["subject"]["line"]


EXPECTED = ("rank-missing-collective", 2, guilty_line("rank_sleeps"))


def test_torchrun_starts_one_copy_a_node_and_one_verdict_is_printed(job):
    port = free_port()
    copies = [node.start(*across(2, at, port), *ATTACH) for at, node in enumerate(job)]
    assert [each.status() for each in copies] == [0, 0]
    said = verdict_of(copies[0])
    assert judged(said) == EXPECTED
    assert [state["rank"] for state in said["samples"]["ranks"]] == [0, 1, 2, 3]
    assert not any("hosts" in text for text in said["verdict"]["unseen"])
    assert copies[1].output() == ""


def of_step(at, nodes=2, local=0):
    """What srun puts into the environment of its tasks."""
    said = {
        "SLURM_JOB_ID": "71", "SLURM_STEP_ID": "3", "SLURM_NODEID": at, "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]", "SLURM_LOCALID": local,
    }  # fmt: skip
    return ("env", *(f"{name}={text}" for name, text in said.items()), sys.executable, *ATTACH)


def test_srun_starts_one_copy_a_node_and_one_verdict_is_printed(job):
    first, second, idle = (
        node.start(*of_step(at, local=local), called="slurmstepd: [71.3]")
        for node, at, local in ((job[0], 0, 0), (job[1], 1, 0), (job[1], 1, 1))
    )
    assert [each.status() for each in (first, second, idle)] == [1, 0, 0]
    assert judged(verdict_of(first)) == EXPECTED
    assert [each.output() + each.errors() for each in (second, idle)] == ["", ""]


def test_variables_of_a_launcher_that_did_not_start_this_copy_do_not_count(job):
    by_hand = job[0].start(*of_step(0))
    assert by_hand.status() == 3
    assert "look at ranks 2-3" in verdict_of(by_hand)["verdict"]["root"]["message"]
    assert verdict_of(by_hand)["elapsed_s"] < 15  # it waited for nobody


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


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def ssh(tmp_path, job):
    """A folder with an `ssh` that knows the nodes as n0 and n1, and n2, on which no sshd runs."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    hosts = []
    for at, port in enumerate((free_port(), free_port(), free_port())):
        hosts.append(CLIENT.format(name=f"n{at}", port=port, folder=tmp_path))
        if at < len(job):
            config = tmp_path / f"sshd{at}"
            config.write_text(SERVER.format(port=port, folder=tmp_path, path=path))
            # Started by root it wants this folder; the node has mounts of its own: the machine's stay as they are.
            ready = "" if os.geteuid() else "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && "
            server = job[at].start("sh", "-c", f"{ready}exec {SSHD} -D -e -f {config}")
            wait(lambda port=port: answers(port), server.errors)
    (tmp_path / "config").write_text("".join(hosts))
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    program.chmod(0o755)
    return tmp_path


@pytest.mark.skipif(not SSHD or not shutil.which("ssh"), reason="no sshd on this machine")
def test_hosts_are_asked_over_ssh_and_one_verdict_is_printed(ssh):
    done = subprocess.run(
        [sys.executable, *ATTACH, "--hosts", "n0,n1,n2"], env={**os.environ, "PATH": f"{ssh}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    said = json.loads(done.stdout)
    assert judged(said) == EXPECTED
    assert [state["rank"] for state in said["samples"]["ranks"]] == [0, 1, 2, 3]
    (unseen,) = (text for text in said["verdict"]["unseen"] if "host n2" in text)
    assert "Connection refused" in unseen
