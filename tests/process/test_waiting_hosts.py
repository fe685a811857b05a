"""A waiting host replaces one that is excluded, or lost with its memory."""

import sys
import time
from pathlib import Path

import pytest

from tests.network_namespaces import hosts, why_not
from tests.process.test_in_process_restart import pids, read_events
from tests.unit.launcher.elastic.test_membership import WORKER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
HERE = Path(__file__).parent
EXCLUDING = HERE.parent / "unit" / "launcher" / "elastic" / "excluding.py"
LIMIT_S = 240
PORT = 29583


def rendezvous(machines, host, nodes):
    conf = f"is_host={int(host is machines[0])},last_call_timeout=20,read_timeout=60"
    where = (
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{machines[0].address}:{PORT}",
        "--rdzv-conf",
        conf,
    )
    return (*where, "--local-addr", host.address, "--nnodes", nodes, "--max-restarts", 3)


def wait_until(condition, started):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, [each.output + each.errors for each in started]
        time.sleep(0.1)


def test_a_waiting_host_replaces_an_excluded_one(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    with hosts(3) as machines:
        started = []
        for number, host in enumerate(machines):
            if number == 2:  # joins while the others run
                wait_until(lambda: len(list(tmp_path.glob("up*"))) == 2, started)
            command = (EXCLUDING, *rendezvous(machines, host, "2:2"), "worker.py")
            started.append(host.fork(*command, folder=tmp_path, STANDING_BY="1"))
        statuses = [each.wait(LIMIT_S) for each in started]
        output = [each.output + each.errors for each in started]
    assert statuses[2] == 0, output
    assert sorted(statuses) == [0, 0, 1], output
    away, stayed = statuses.index(1), statuses[:2].index(0)
    assert "is excluded from the job: its disk is gone" in output[away]
    assert [output[number].count("world 2") for number in (away, stayed, 2)] == [1, 2, 1], output
    assert not any("world 1" in each for each in output)


@pytest.mark.matrix
def test_a_waiting_host_replaces_a_lost_one_with_shards_from_peer_memory(tmp_path):
    (tmp_path / "go").touch()
    with hosts(4) as machines:
        started = []
        for host in machines:
            if host is machines[3]:
                wait_until(lambda: len(list(tmp_path.glob("copied*"))) == 3, started)
            started.append(
                host.start(
                    "env",
                    f"--chdir={tmp_path}",
                    sys.executable,
                    "-m",
                    "holdfast",
                    "run",
                    *rendezvous(machines, host, "3:3"),
                    "--nproc-per-node",
                    1,
                    "--spares",
                    "off",
                    "--run-dir",
                    f"runs{host.number}",
                    HERE / "in_process_trainer.py",
                    tmp_path,
                    "none",
                    99,
                    GLOO_SOCKET_IFNAME="eth0",
                    TP_SOCKET_IFNAME="eth0",
                )
            )
        shards_per_host = [
            host.do("sh", "-c", "ls /dev/shm/holdfast-*/checkpoints/step-*").split()
            for host in machines[:3]
        ]
        (tmp_path / "ckpts").rename(tmp_path / "away")
        machines[2].die()
        statuses = [started[number].wait(LIMIT_S) for number in (0, 1, 3)]
        output = "".join(each.output + each.errors for each in started)
        remaining = [machines[number].do("ls", "/dev/shm") for number in (0, 1, 3)]
    assert statuses == [0, 0, 0], output
    files = set().union(*shards_per_host)
    # No host has all shards.
    assert all(set(each) < files for each in shards_per_host), shards_per_host
    generation = max(generation for generation, _ in pids(tmp_path))
    starts = [each for each in read_events(tmp_path, "begun") if each["generation"] == generation]
    assert sorted(each["rank"] for each in starts) == [0, 1, 2], output
    assert [each["step"] for each in starts] == [3, 3, 3], output
    assert all("/checkpoints/.gathered/" in each["folder"] for each in starts), starts
    assert remaining == ["", "", ""]
