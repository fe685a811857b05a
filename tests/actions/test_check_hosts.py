"""Several hosts are checked together: on each of them the command says the same, and in time."""

from __future__ import annotations

import json
import sys

import pytest

from holdfast.facts.checks import CHECKS
from tests.facts.gpus.recorded import library
from tests.hosts import EPHEMERAL, NOBODY, hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

PORT = 29500
#: Generous, as others may use the machine.
LIMIT_S = 45


def check(those, *more, endpoint="", nodes=None, ranks=None, only=("--only", "shared-memory"), own=None):
    """What the command says on each of them, as JSON, all started at once."""
    nodes, ranks = nodes or [len(those)] * len(those), ranks or [host.number for host in those]
    endpoint = endpoint or those[0].address
    running = [
        host.start(
            sys.executable, "-m", "holdfast", "check", *only, "--json", "--nnodes", nodes[at],
            "--node-rank", ranks[at], "--rdzv-endpoint", f"{endpoint}:{PORT}", *more, *(own[at] if own else ()),
        )
        for at, host in enumerate(those)
    ]  # fmt: skip
    said = []
    for each in running:
        each.wait()
        assert each.took_s < LIMIT_S
        assert each.errors == ""
        said.append(json.loads(each.output) | {"status": each.process.returncode})
    return said


def roots(said):
    """Cause and sentence on each host."""
    return [(each["verdict"]["root"]["cause"], each["verdict"]["root"]["message"]) for each in said]


def test_hosts_that_are_well_and_one_whose_clock_is_fast():
    with hosts(3) as those:
        those[1].shift_clock(3)
        said = check(those, "--hosts-file", those[0].folder / "list-")
        lists = [(those[0].folder / f"list-{name}.txt").read_text() for name in ("passing", "failing")]
    assert [each["status"] for each in said] == [0, 0, 0]
    assert said[0]["matrix"]["rows"] == ["-..", ".-.", "..-"]
    assert len(said[0]["links"]) == 3
    assert lists == ["node0\nnode1\nnode2\n", ""]
    assert [(claim["cause"], claim["subject"]["host"]) for claim in said[2]["findings"]] == [("clocks-differ", "node1")]
    ahead = {clock["number"]: clock["ahead_s"] for clock in said[1]["clocks"]}
    assert ahead[1] == pytest.approx(3, abs=1e-2)


def test_all_of_it_on_hosts_that_are_well():
    """Whatever is wrong with this machine, each of its hosts tells; what is between the hosts is well.

    The first brings two processes into the small job, the other one none but its own.
    """
    with hosts(2) as those:
        said = check(those, only=(), own=(("--nproc-per-node", 2), ()))
    for each in said:
        between = [
            claim for claim in each["findings"] if claim["subject"]["link"] or claim["subject"]["rank"] is not None
        ]
        assert [claim for claim in between if claim["level"] == "error"] == []
        assert len(each["checks"]) == 2 * len(CHECKS)
        names = [stage["name"] for stage in each["stages"]]
        assert names[-1] == "all-reduce of 3"
        assert [name for name in names if name.startswith("group of ")] == [
            "group of 1", *(["group of 2"] if each is said[0] else []), "group of 3",
        ]  # fmt: skip
        assert {stage["state"] for stage in each["stages"]} == {"ok"}
        assert {timing["size_bytes"] for timing in each["stages"][-1]["timings"]} >= {4, 4 << 20}


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        (lambda first, _: first.drop(PORT), "firewall-blocked-ports", "port 29500 of node0 (node 0) vanish"),
        (lambda first, _: first.reject(PORT), "firewall-blocked-ports", "are rejected"),
        (lambda first, _: first.reject(PORT, told="tcp reset"), "firewall-blocked-ports", "are refused"),
        (lambda first, _: first.drop(EPHEMERAL), "firewall-blocked-ports", "to the data ports of node0"),
        (lambda _, second: second.lose_large(), "mtu-black-hole", "from node0 (node 0) to the data ports of node1"),
    ],
)
def test_a_fault_between_two_hosts_is_told_on_both(fault, cause, words):
    with hosts(2) as those:
        fault(*those)
        said = check(those)
    assert [each["status"] for each in said] == [1, 1]
    assert len(set(roots(said))) == 1
    assert roots(said)[0][0] == cause
    assert words in roots(said)[0][1]


def test_one_of_four_hosts_drops_what_the_others_send():
    with hosts(4) as those:
        those[2].drop(EPHEMERAL)
        said = check(those)
    assert len(set(roots(said))) == 1
    assert "to node2 (node 2) from each of 3 hosts" in roots(said)[0][1]
    assert said[3]["failing"] == ["node2 (node 2)"]
    assert said[3]["matrix"]["rows"] == ["-.D.", ".-D.", "..-.", "..D-"]


def test_a_driver_that_hangs_on_one_host_costs_its_own_answer_alone(tmp_path):
    """The process that asks it really stands, in a library that stands for the driver's."""
    with hosts(2) as those:
        those[1].do("mount", "-t", "tmpfs", "none", "/proc/driver")
        those[1].do("mkdir", "/proc/driver/nvidia")
        those[1].variables = {"LD_LIBRARY_PATH": str(library(tmp_path)), "NVML_HANGS": "1"}
        said = check(those, only=("--only", "gpus", "--only", "swap"))
    for each in said:
        told = {(one["host"], one["name"]): one for one in each["checks"]}
        assert set(told) == {(host, name) for host in ("node0", "node1") for name in ("gpus", "swap")}
        assert "the NVIDIA driver did not answer within 6.3 s" in told["node1", "gpus"]["unseen"][0]
        assert each["verdict"]["root"] is None or each["verdict"]["root"]["level"] != "error"


def test_hosts_that_cannot_meet_say_each_why():
    with hosts(2) as those:
        said = check(those, endpoint=NOBODY)
    assert [each["status"] for each in said] == [1, 1]
    assert {cause for cause, _ in roots(said)} == {"master-unreachable"}
    assert "is no address of node0" in roots(said)[0][1]
    assert "no host answers" in roots(said)[1][1]


def test_a_link_that_is_slow():
    with hosts(4) as those:
        those[3].limit("200mbit")
        said = check(those)
    slow = [claim for claim in said[0]["findings"] if claim["cause"] == "slow-link"]
    assert [claim["level"] for claim in slow] == ["warning"] * len(slow)
    assert slow
    assert all("node3" in (claim["subject"]["host"] or claim["subject"]["link"]) for claim in slow)
