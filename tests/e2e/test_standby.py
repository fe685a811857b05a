"""A host stands by, and takes the place of one that is sent away, or is lost with all that was in its memory."""

import sys
import time
from pathlib import Path

import pytest

from tests.e2e.test_in_place import pids, told
from tests.hosts import hosts, why_not
from tests.runtime.test_membership import WORKER

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.skipif(bool(why_not()), reason=why_not()),
]  # fmt: skip
HERE = Path(__file__).parent
EXCLUDING = HERE.parent / "runtime" / "excluding.py"
ROOT = HERE.parents[1]
LIMIT_S = 240
PORT = 29583


def meeting(made, host, nodes):
    conf = f"is_host={int(host is made[0])},last_call_timeout=20,read_timeout=60"
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{made[0].address}:{PORT}", "--rdzv-conf", conf)
    return (*where, "--local-addr", host.address, "--nnodes", nodes, "--max-restarts", 3)


def until(holds, started):
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, [each.output + each.errors for each in started]
        time.sleep(0.1)


def test_a_host_that_stands_by_takes_the_place_of_one_that_is_excluded(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    with hosts(3) as made:
        started = []
        for number, host in enumerate(made):
            if number == 2:  # it comes when the others are at work
                until(lambda: len(list(tmp_path.glob("up*"))) == 2, started)
            program = ("env", f"--chdir={tmp_path}", f"PYTHONPATH={ROOT}", sys.executable, EXCLUDING)
            started.append(host.start(*program, *meeting(made, host, "2:2"), "worker.py", STANDING_BY="1"))
        ended = [each.wait(LIMIT_S) for each in started]
        said = [each.output + each.errors for each in started]
    assert ended[2] == 0, said
    assert sorted(ended) == [0, 0, 1], said
    away, stayed = ended.index(1), ended[:2].index(0)
    assert "does not take part in the job: its disk is gone" in said[away]
    assert [said[number].count("world 2") for number in (away, stayed, 2)] == [1, 2, 1], said
    assert not any("world 1" in each for each in said)


@pytest.mark.matrix
def test_a_lost_host_is_replaced_and_its_part_comes_from_its_neighbours_memory(tmp_path):
    (tmp_path / "go").touch()
    with hosts(4) as made:
        started = []
        for host in made:
            if host is made[3]:
                until(lambda: len(list(tmp_path.glob("copied*"))) == 3, started)
            started.append(host.start(
                "env", f"--chdir={tmp_path}", sys.executable, "-m", "holdfast", "run", *meeting(made, host, "3:3"),
                "--nproc-per-node", 1, "--spares", "off", "--run-dir", f"runs{host.number}",
                HERE / "goes_on.py", tmp_path, "none", 99, GLOO_SOCKET_IFNAME="eth0", TP_SOCKET_IFNAME="eth0",
            ))  # fmt: skip
        held = [host.do("sh", "-c", "ls /dev/shm/holdfast-*/checkpoints/step-*").split() for host in made[:3]]
        (tmp_path / "ckpts").rename(tmp_path / "away")
        made[2].die()
        ended = [started[number].wait(LIMIT_S) for number in (0, 1, 3)]
        said = "".join(each.output + each.errors for each in started)
        left = [made[number].do("ls", "/dev/shm") for number in (0, 1, 3)]
    assert ended == [0, 0, 0], said
    files = set().union(*held)
    assert all(set(each) < files for each in held), held  # nobody has all of it
    generation = max(generation for generation, _ in pids(tmp_path))
    begun = [each for each in told(tmp_path, "begun") if each["generation"] == generation]
    assert sorted(each["rank"] for each in begun) == [0, 1, 2], said
    assert [each["step"] for each in begun] == [3, 3, 3], said
    assert all("/checkpoints/.gathered/" in each["folder"] for each in begun), begun
    assert left == ["", "", ""]
