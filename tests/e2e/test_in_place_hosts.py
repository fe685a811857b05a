"""Recovery inside the process on two hosts: a rank on the second dies, and all others stay what they are."""

import sys
from pathlib import Path

import pytest

from tests.e2e.test_in_place import pids, told
from tests.hosts import hosts, why_not

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.skipif(bool(why_not()), reason=why_not()),
]  # fmt: skip
HERE = Path(__file__).parent
LIMIT_S = 200
PORT = 29579


def submitted(made, folder, *arguments):
    """The job on all hosts, two ranks on each, in one folder that they share."""
    meeting = ("--nnodes", len(made), "--master-addr", made[0].address, "--master-port", PORT)
    return [
        host.start(
            "env", f"--chdir={folder}", sys.executable, "-m", "holdfast", "run", *meeting, "--node-rank", host.number,
            "--nproc-per-node", 2, "--max-restarts", 3, "--spares", "off", "--run-dir", f"runs{host.number}",
            HERE / "goes_on.py", folder, *arguments, GLOO_SOCKET_IFNAME="eth0", TP_SOCKET_IFNAME="eth0",
        )
        for host in made
    ]  # fmt: skip


def test_survivors_on_both_hosts_keep_their_processes(tmp_path):
    (tmp_path / "go").touch()
    with hosts(2) as made:
        started = submitted(made, tmp_path, "killed", 3)
        assert [each.wait(LIMIT_S) for each in started] == [0, 0], "".join(each.output for each in started)
        said = "".join(each.output + each.errors for each in started)
        assert [host.do("ls", "/dev/shm") for host in made] == ["", ""]
    found = pids(tmp_path)
    assert set(found) == {(generation, rank) for generation in (0, 1) for rank in range(4)}, said
    assert [found[0, rank] == found[1, rank] for rank in range(4)] == [True, True, True, False]
    begun = [each for each in told(tmp_path, "begun") if each["generation"] == 1]
    assert [each["step"] for each in begun] == [3] * 4, said
    assert all(each["folder"].startswith("/dev/shm/holdfast-") for each in begun), begun
    assert said.count("restart 1 of 3") >= 1, said


@pytest.mark.matrix
def test_a_second_death_on_the_other_host_starts_all_processes_anew(tmp_path):
    (tmp_path / "go").touch()
    with hosts(2) as made:
        started = submitted(made, tmp_path, "twice", 1)  # then rank 2, on the second host
        assert [each.wait(LIMIT_S) for each in started] == [0, 0], "".join(each.output for each in started)
    found = pids(tmp_path)
    assert {rank for generation, rank in found if generation == 2} == set(range(4))
    assert not {found[0, rank] for rank in range(4)} & {found[2, rank] for rank in range(4)}
