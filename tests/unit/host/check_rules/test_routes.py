"""Findings about missing or unintended routes to the rendezvous, and about neighbours."""

import pytest

from tests.unit.host.check_rules.findings_of import findings_of
from tests.unit.host.checks.trees import host, neighbours, network

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
        (
            "10.7.0.1",
            {},
            ("error", "master-unreachable", "no route from this host to 10.7.0.1"),
        ),
        (
            "node0",
            {},
            ("warning", "hostname-resolution", "node0 resolves to the loopback address 127.0.1.1"),
        ),
        (
            "node2",
            {},
            ("warning", "hostname-resolution", "programs that do not fall back to 10.1.0.7 fail"),
        ),
        ("172.17.0.9", {}, ("warning", "network-interface-wrong", "uses docker0")),
        (
            "10.1.0.9",
            {"GLOO_SOCKET_IFNAME": "ib0"},
            ("warning", "network-interface-wrong", "uses eth0"),
        ),
    ],
)
def test_routes(tmp_path, endpoint, variables, expected):
    findings = findings_of(
        "routes", host(tmp_path, FILES, endpoint=(endpoint, 29500), environ=variables)
    )
    assert len(findings) == (expected is not None)
    for finding in findings:
        assert finding[:2] == expected[:2]
        assert expected[2] in finding[2]


def test_no_endpoint(tmp_path):
    assert findings_of("routes", host(tmp_path, FILES)) == []


@pytest.mark.parametrize("answers", [True, False])
def test_required_neighbour(tmp_path, answers):
    files = FILES | neighbours(("10.1.0.1", "eth0", answers), ("10.1.0.77", "eth0", False))
    findings = findings_of("neighbours", host(tmp_path, files, endpoint=("10.9.0.1", 29500)))
    assert [finding[:2] for finding in findings] == (
        [] if answers else [("warning", "master-unreachable")]
    )


@pytest.mark.parametrize(("rows", "full"), [(7, False), (9, True)])
def test_full_neighbour_table(tmp_path, rows, full):
    files = FILES | neighbours(*((f"10.1.0.{row}", "eth0", True) for row in range(rows)))
    files["/proc/sys/net/ipv4/neigh/default/gc_thresh3"] = "10\n"
    assert [finding[1] for finding in findings_of("neighbours", host(tmp_path, files))] == [
        "network-fabric-fault"
    ] * full
