"""Findings about faulty interfaces, and variables that select the wrong ones."""

import pytest

from holdfast.host.check_rules.interface_names import matching_interfaces
from tests.unit.host.check_rules.findings_of import findings_of, levels_and_causes
from tests.unit.host.checks.trees import host, network

LO = {"lo": ("127.0.0.1/8", {"flags": "0x9", "mtu": "65536"})}
NAMES = ["lo", "eth0", "eth1", "docker0"]


def eth0(address="10.1.0.5/16", **attributes):
    return {**LO, "eth0": (address, attributes)}


def context(tmp_path, interfaces, version6="", **variables):
    return host(tmp_path, network(interfaces, version6=version6), environ=variables)


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "=eth", []),
        ("NCCL_SOCKET_IFNAME", "=eth1,lo", ["lo", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "^=eth0", ["lo", "eth1", "docker0"]),
        ("GLOO_SOCKET_IFNAME", "eth", []),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", ["eth0", "eth1"]),
        ("GLOO_SOCKET_IFNAME", "^lo", []),
    ],
)
def test_interfaces_that_a_variable_selects(variable, value, names):
    assert matching_interfaces(variable, value, NAMES) == names


def test_a_healthy_host(tmp_path):
    assert (
        findings_of("interfaces", context(tmp_path, eth0(carrier="1"), NCCL_SOCKET_IFNAME="eth"))
        == []
    )


@pytest.mark.parametrize(
    ("interfaces", "expected", "words"),
    [
        (eth0(carrier="0"), ("warning", "network-fabric-fault"), "no carrier"),
        (eth0(errors=500), ("warning", "network-fabric-fault"), "500 errors in 1,000,000 packets"),
        (eth0(dropped=20_000), ("note", "network-fabric-fault"), "dropped 20,000"),
        (eth0(duplex="half"), ("warning", "network-fabric-fault"), "half duplex"),
        (eth0(mtu="576"), ("warning", "network-fabric-fault"), "the MTU of eth0 is 576"),
        (LO, ("note", "network-interface-wrong"), "only loopback addresses"),
        (
            eth0() | {"eth1": ("10.1.0.6/16", {})},
            ("note", "network-interface-wrong"),
            "eth0 and eth1 are both in",
        ),
        (
            eth0() | {"eth1": ("10.2.0.6/16", {"mtu": "9000"})},
            ("note", "network-fabric-fault"),
            "eth1 9000",
        ),
    ],
)
def test_faults(tmp_path, interfaces, expected, words):
    ((level, cause, message),) = findings_of("interfaces", context(tmp_path, interfaces))
    assert (level, cause) == expected
    assert words in message


@pytest.mark.parametrize(
    "attributes", [{"errors": 99}, {"errors": 5}, {"dropped": 9_999}, {"duplex": "full"}]
)
def test_normal_counters_are_no_finding(tmp_path, attributes):
    assert findings_of("interfaces", context(tmp_path, eth0(**attributes))) == []


def test_an_address_that_another_host_has(tmp_path):
    duplicate_address = "fd000000000000000000000000000007 02 40 00 88     eth0\n"
    ((level, _, message),) = findings_of("interfaces", context(tmp_path, eth0(), duplicate_address))
    assert level == "warning"
    assert "fd00::7" in message


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NCCL_SOCKET_IFNAME": "ib"}, "matches no interface of this host (lo, eth0)"),
        ({"GLOO_SOCKET_IFNAME": "^lo"}, "matches no interface"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "no interface has a routable IPv6 address"),
    ],
)
def test_variables_that_match_no_interface(tmp_path, variables, words):
    ((level, cause, message),) = findings_of("interfaces", context(tmp_path, eth0(), **variables))
    assert (level, cause) == ("error", "network-interface-wrong")
    assert words in message


def test_a_variable_that_selects_an_interface_without_an_address(tmp_path):
    interfaces = eth0() | {"eth1": ("", {"flags": "0x1002"})}
    assert levels_and_causes(
        "interfaces", context(tmp_path, interfaces, GLOO_SOCKET_IFNAME="eth1")
    ) == [("error", "network-interface-wrong")]


def test_interfaces_of_containers_are_not_judged(tmp_path):
    assert (
        findings_of(
            "interfaces",
            context(tmp_path, eth0() | {"docker0": ("172.17.0.1/16", {"carrier": "0"})}),
        )
        == []
    )


def test_unknown_is_no_finding(tmp_path):
    assert findings_of("interfaces", host(tmp_path)) == []
