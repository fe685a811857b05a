"""In-process restart on two hosts after a rank on the second one dies."""

import sys
from pathlib import Path

import pytest

from tests.network_namespaces import hosts, why_not
from tests.process.test_in_process_restart import pids, read_events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
HERE = Path(__file__).parent
LIMIT_S = 200
PORT = 29579


def start_job(machines, folder, *arguments):
    """Start the job on all hosts, two ranks on each, in a shared folder."""
    rendezvous = (
        "--nnodes",
        len(machines),
        "--master-addr",
        machines[0].address,
        "--master-port",
        PORT,
    )
    return [
        host.start(
            "env",
            f"--chdir={folder}",
            sys.executable,
            "-m",
            "holdfast",
            "run",
            *rendezvous,
            "--node-rank",
            host.number,
            "--nproc-per-node",
            2,
            "--max-restarts",
            3,
            "--spares",
            "off",
            "--run-dir",
            f"runs{host.number}",
            HERE / "in_process_trainer.py",
            folder,
            *arguments,
            GLOO_SOCKET_IFNAME="eth0",
            TP_SOCKET_IFNAME="eth0",
        )
        for host in machines
    ]


@pytest.mark.matrix
def test_survivors_on_both_hosts_keep_their_processes(tmp_path):
    (tmp_path / "go").touch()
    with hosts(2) as machines:
        started = start_job(machines, tmp_path, "killed", 3)
        assert [each.wait(LIMIT_S) for each in started] == [0, 0], "".join(
            each.output for each in started
        )
        output = "".join(each.output + each.errors for each in started)
        assert [host.do("ls", "/dev/shm") for host in machines] == ["", ""]
    processes = pids(tmp_path)
    assert set(processes) == {(generation, rank) for generation in (0, 1) for rank in range(4)}, (
        output
    )
    assert [processes[0, rank] == processes[1, rank] for rank in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    starts = [each for each in read_events(tmp_path, "begun") if each["generation"] == 1]
    assert [each["step"] for each in starts] == [3] * 4, output
    assert all(each["folder"].startswith("/dev/shm/holdfast-") for each in starts), starts
    assert output.count("restart 1 of 3") >= 1, output


@pytest.mark.matrix
def test_a_second_death_on_the_other_host_restarts_all_processes(tmp_path):
    (tmp_path / "go").touch()
    with hosts(2) as machines:
        started = start_job(machines, tmp_path, "twice", 1)  # then rank 2, on the second host
        assert [each.wait(LIMIT_S) for each in started] == [0, 0], "".join(
            each.output for each in started
        )
    processes = pids(tmp_path)
    assert {rank for generation, rank in processes if generation == 2} == set(range(4))
    assert not {processes[0, rank] for rank in range(4)} & {processes[2, rank] for rank in range(4)}
