"""The job of the matrix on two hosts, a rank on each: ranks, agents, hosts and the network between them are lost."""

from __future__ import annotations

import json
import shutil
import sys
import time
from importlib.util import find_spec

import pytest

from holdfast.actions.chaos import assess, play
from holdfast.actions.chaos.assess import Played
from holdfast.actions.chaos.scenarios import PATIENCE, SAVE_EVERY, STEPS, Scenario
from tests.hosts import hosts, why_not

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.skipif(bool(why_not()), reason=why_not()),
]  # fmt: skip
LIMIT_S = 150
PORT = 29577


class Submitted:
    """The job, started on both hosts in one folder that they share."""

    def __init__(self, made, folder, inject=()):
        shutil.copy(find_spec("holdfast.runtime.chaos_trainer").origin, folder / "train.py")
        self.folder, self.made = folder, made
        self.started = [self._start(number, host, inject) for number, host in enumerate(made)]

    def _start(self, number, host, inject):
        meeting = ("--nnodes", 2, "--node-rank", number, "--master-addr", self.made[0].address, "--master-port", PORT)
        options = ("--json-report", f"report{number}.json", "--run-dir", f"runs{number}", "--max-restarts", 4)
        faults = [word for text in inject for word in ("--inject", text)]
        return host.start(
            "env", f"--chdir={self.folder}", sys.executable, "-m", "holdfast", "run", *meeting, *options, *faults,
            "--nproc-per-node", 1, "train.py", "--steps", STEPS, "--save-every", SAVE_EVERY,
            **PATIENCE, GLOO_SOCKET_IFNAME="eth0", TP_SOCKET_IFNAME="eth0",
        )  # fmt: skip

    def reached(self, step):
        """Wait until a rank is in that step."""
        until = time.monotonic() + LIMIT_S
        while not any(fact.step >= step for trace in play._traces(self.folder).values() for fact in trace):
            assert time.monotonic() < until, self.said
            time.sleep(0.05)

    @property
    def said(self):
        return "".join(each.output + each.errors for each in self.started)

    def ended(self):
        """The statuses of both, which end by themselves."""
        return tuple(each.wait(LIMIT_S) for each in self.started)

    def played(self):
        """What was seen, after the end."""
        left = play._left(self.folder)
        reports = [self.folder / f"report{number}.json" for number in range(2)]
        found = next((json.loads(path.read_text()) for path in reports if path.exists()), {})
        shared = [name for host in self.made for name in host.do("ls", "/dev/shm").split()]
        return Played(
            statuses=self.ended()[-1:], reports=(found,), traces=play._traces(self.folder), output=self.said,
            processes=tuple(map(play._named, left)), shared=tuple(shared),
        )  # fmt: skip


@pytest.fixture(scope="module")
def in_peace(tmp_path_factory):
    with hosts(2) as made:
        job = Submitted(made, tmp_path_factory.mktemp("peace"))
        assert job.ended() == (0, 0), job.said
        played = job.played()
    calm = Scenario(name="peace", fault="none", moment="")
    assert assess.wrong(calm, played, played) == [], played.output
    return played


def scenario(**different):
    return Scenario(name="", fault="", moment="middle", **different)


def test_a_rank_is_killed(in_peace, tmp_path):
    with hosts(2) as made:
        job = Submitted(made, tmp_path, ["sigkill@rank=1,step=16"])
        assert job.ended() == (0, 0), job.said
        played = job.played()
    assert assess.wrong(scenario(causes=frozenset({"rank-killed"}), culprit=1), played, in_peace) == [], played.output


@pytest.mark.parametrize("ways", [("in",), pytest.param(("in", "out"), marks=pytest.mark.matrix)])
def test_the_network_is_cut_and_healed(in_peace, tmp_path, ways):
    with hosts(2) as made:
        job = Submitted(made, tmp_path)
        job.reached(12)
        for way in ways:
            made[1].drop(direction=way)
        time.sleep(2)
        made[1].mend()
        assert job.ended() == (0, 0), job.said
        played = job.played()
    assert assess.wrong(scenario(), played, in_peace) == [], played.output


@pytest.mark.matrix
@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "other"])
def test_a_host_is_lost_and_the_job_is_submitted_again(in_peace, tmp_path, lost):
    with hosts(2) as made:
        job = Submitted(made, tmp_path)
        job.reached(15)
        job.started[lost].kill()
        for process in play._living(tmp_path):
            if f"--node-rank {lost}" in " ".join(process.cmdline()):
                process.kill()
        assert job.started[1 - lost].wait(LIMIT_S) != 0, job.said
        again = Submitted(made, tmp_path)
        assert again.ended() == (0, 0), again.said
        played = again.played()
    assert assess.wrong(scenario(), played, in_peace) == [], played.output
