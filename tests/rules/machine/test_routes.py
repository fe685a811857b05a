"""Ways to the rendezvous that are none, or others than meant."""

import pytest

from tests.facts.checks.trees import host, neighbours, network
from tests.rules.machine.asked import found

FILES = network(
    {"lo": ("127.0.0.1/8", {}), "eth0": ("10.1.0.5/16", {}), "docker0": ("172.17.0.1/16", {})},
    [("eth0", "10.9.0.0/16", "10.1.0.1", 0)],
) | {"/etc/hosts": "127.0.1.1 node0\n10.1.0.9 node1\nfd00::9 node2\n10.1.0.7 node2\n"}


@pytest.mark.parametrize(
    ("endpoint", "variables", "expected"),
    [
        ("10.1.0.9", {}, None),
        ("10.1.0.5", {}, None),
        ("localhost", {}, None),
        ("127.0.0.1", {}, None),
        ("node7", {}, None),
        ("10.1.0.9", {"NCCL_SOCKET_IFNAME": "eth"}, None),
        ("10.7.0.1", {}, ("error", "master-unreachable", "no way leads from this host to 10.7.0.1")),
        ("node0", {}, ("warning", "hostname-resolution", "node0 means 127.0.1.1 here")),
        ("node2", {}, ("warning", "hostname-resolution", "programs that do not go on to 10.1.0.7 fail")),
        ("172.17.0.9", {}, ("warning", "network-interface-wrong", "leaves through docker0")),
        ("10.1.0.9", {"GLOO_SOCKET_IFNAME": "ib0"}, ("warning", "network-interface-wrong", "leaves through eth0")),
    ],
)
def test_ways(tmp_path, endpoint, variables, expected):
    claims = found("routes", host(tmp_path, FILES, endpoint=(endpoint, 29500), environ=variables))
    assert len(claims) == (expected is not None)
    for claim in claims:
        assert claim[:2] == expected[:2]
        assert expected[2] in claim[2]


def test_nobody_asked_for_a_way(tmp_path):
    assert found("routes", host(tmp_path, FILES)) == []


@pytest.mark.parametrize("answers", [True, False])
def test_a_neighbour_that_is_needed(tmp_path, answers):
    files = FILES | neighbours(("10.1.0.1", "eth0", answers), ("10.1.0.77", "eth0", False))
    claims = found("neighbours", host(tmp_path, files, endpoint=("10.9.0.1", 29500)))
    assert [claim[:2] for claim in claims] == ([] if answers else [("warning", "master-unreachable")])


@pytest.mark.parametrize(("rows", "full"), [(7, False), (9, True)])
def test_a_table_that_is_full(tmp_path, rows, full):
    files = FILES | neighbours(*((f"10.1.0.{row}", "eth0", True) for row in range(rows)))
    files["/proc/sys/net/ipv4/neigh/default/gc_thresh3"] = "10\n"
    assert [claim[1] for claim in found("neighbours", host(tmp_path, files))] == ["network-fabric-fault"] * full
