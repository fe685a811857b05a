"""Several hosts are checked together: all print the same result, in time."""

from __future__ import annotations

import json

import pytest

from holdfast.host.checks import CHECKS
from tests.network_namespaces import EPHEMERAL, NOBODY, hosts, why_not
from tests.unit.host.gpus.recorded import library

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

PORT = 29500
#: Generous, because the machine may be busy.
LIMIT_S = 45


def check(
    nodes_of_job,
    *more,
    endpoint="",
    nodes=None,
    ranks=None,
    only=("--only", "shared-memory"),
    own=None,
):
    """Run the command on all hosts concurrently; return the JSON outputs."""
    nodes, ranks = (
        nodes or [len(nodes_of_job)] * len(nodes_of_job),
        ranks or [host.number for host in nodes_of_job],
    )
    endpoint = endpoint or nodes_of_job[0].address
    running = [
        host.fork(
            "-m",
            "holdfast",
            "check",
            *only,
            "--json",
            "--nnodes",
            nodes[at],
            "--node-rank",
            ranks[at],
            "--rdzv-endpoint",
            f"{endpoint}:{PORT}",
            *more,
            *(own[at] if own else ()),
        )
        for at, host in enumerate(nodes_of_job)
    ]
    outputs = []
    for each in running:
        each.wait()
        assert each.took_s < LIMIT_S
        assert each.errors == ""
        outputs.append(json.loads(each.output) | {"status": each.status})
    return outputs


def roots(outputs):
    """Return cause and message of the root on each host."""
    return [
        (each["verdict"]["root"]["cause"], each["verdict"]["root"]["message"]) for each in outputs
    ]


def test_healthy_hosts_and_one_fast_clock():
    with hosts(3) as nodes_of_job:
        nodes_of_job[1].shift_clock(3)
        outputs = check(nodes_of_job, "--hosts-file", nodes_of_job[0].folder / "list-")
        lists = [
            (nodes_of_job[0].folder / f"list-{name}.txt").read_text()
            for name in ("passing", "failing")
        ]
    assert [each["status"] for each in outputs] == [0, 0, 0]
    assert outputs[0]["matrix"]["rows"] == ["-..", ".-.", "..-"]
    assert len(outputs[0]["links"]) == 3
    assert lists == ["node0\nnode1\nnode2\n", ""]
    assert [
        (finding["cause"], finding["subject"]["host"]) for finding in outputs[2]["findings"]
    ] == [("clocks-differ", "node1")]
    ahead = {clock["number"]: clock["ahead_s"] for clock in outputs[1]["clocks"]}
    assert ahead[1] == pytest.approx(3, abs=1e-2)


def test_all_checks_and_the_smoke_test_on_healthy_hosts():
    """Each host reports its own problems; there is no problem between the hosts.

    The first host runs two smoke-test processes, the second one.
    """
    with hosts(2) as nodes_of_job:
        outputs = check(nodes_of_job, only=(), own=(("--nproc-per-node", 2), ()))
    for each in outputs:
        between = [
            finding
            for finding in each["findings"]
            if finding["subject"]["link"] or finding["subject"]["rank"] is not None
        ]
        assert [finding for finding in between if finding["level"] == "error"] == []
        assert len(each["checks"]) == 2 * len(CHECKS)
        names = [stage["name"] for stage in each["stages"]]
        assert names[-1] == "all-reduce of 3"
        assert [name for name in names if name.startswith("group of ")] == [
            "group of 1",
            *(["group of 2"] if each is outputs[0] else []),
            "group of 3",
        ]
        assert {stage["state"] for stage in each["stages"]} == {"ok"}
        assert {timing["size_bytes"] for timing in each["stages"][-1]["timings"]} >= {4, 4 << 20}


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        (
            lambda first, _: first.drop(PORT),
            "firewall-blocked-ports",
            "port 29500 of node0 (node 0) are dropped",
        ),
        (lambda first, _: first.reject(PORT), "firewall-blocked-ports", "are rejected"),
        (
            lambda first, _: first.reject(PORT, told="tcp reset"),
            "firewall-blocked-ports",
            "are refused",
        ),
        (
            lambda first, _: first.drop(EPHEMERAL),
            "firewall-blocked-ports",
            "to the data ports of node0",
        ),
        (
            lambda _, second: second.lose_large(),
            "mtu-black-hole",
            "from node0 (node 0) to the data ports of node1",
        ),
    ],
)
def test_a_fault_between_two_hosts_is_reported_on_both(fault, cause, words):
    with hosts(2) as nodes_of_job:
        fault(*nodes_of_job)
        outputs = check(nodes_of_job)
    assert [each["status"] for each in outputs] == [1, 1]
    assert len(set(roots(outputs))) == 1
    assert roots(outputs)[0][0] == cause
    assert words in roots(outputs)[0][1]


def test_one_of_four_hosts_drops_packets():
    with hosts(4) as nodes_of_job:
        nodes_of_job[2].drop(EPHEMERAL)
        outputs = check(nodes_of_job)
    assert len(set(roots(outputs))) == 1
    assert "to node2 (node 2) from each of 3 hosts" in roots(outputs)[0][1]
    assert outputs[3]["failing"] == ["node2 (node 2)"]
    # On a loaded machine a link may also be measured as slow (S), which is not the subject here.
    rows = [row.replace("S", ".") for row in outputs[3]["matrix"]["rows"]]
    assert rows == ["-.D.", ".-D.", "..-.", "..D-"]


def test_a_hung_driver_on_one_host_affects_only_its_check(tmp_path):
    """The querying process really blocks, in a library that replaces the driver's."""
    with hosts(2) as nodes_of_job:
        nodes_of_job[1].do("mount", "-t", "tmpfs", "none", "/proc/driver")
        nodes_of_job[1].do("mkdir", "/proc/driver/nvidia")
        nodes_of_job[1].variables = {"LD_LIBRARY_PATH": str(library(tmp_path)), "NVML_HANGS": "1"}
        outputs = check(nodes_of_job, only=("--only", "gpus", "--only", "swap"))
    for each in outputs:
        by_check = {(one["host"], one["name"]): one for one in each["checks"]}
        assert set(by_check) == {
            (host, name) for host in ("node0", "node1") for name in ("gpus", "swap")
        }
        assert (
            "the NVIDIA driver did not answer within 6.3 s"
            in by_check["node1", "gpus"]["unseen"][0]
        )
        assert each["verdict"]["root"] is None or each["verdict"]["root"]["level"] != "error"


def test_hosts_that_cannot_rendezvous_report_why():
    with hosts(2) as nodes_of_job:
        outputs = check(nodes_of_job, endpoint=NOBODY)
    assert [each["status"] for each in outputs] == [1, 1]
    assert {cause for cause, _ in roots(outputs)} == {"master-unreachable"}
    assert "is not an address of node0" in roots(outputs)[0][1]
    assert "no host answers" in roots(outputs)[1][1]


def test_a_slow_link():
    with hosts(4) as nodes_of_job:
        nodes_of_job[3].limit("100mbit")
        outputs = check(nodes_of_job)
    slow = [finding for finding in outputs[0]["findings"] if finding["cause"] == "slow-link"]
    assert [finding["level"] for finding in slow] == ["warning"] * len(slow)
    assert slow
    assert all(
        "node3" in (finding["subject"]["host"] or finding["subject"]["link"]) for finding in slow
    )
