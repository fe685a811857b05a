"""Network interfaces of this host and of recorded ones."""

import socket
from pathlib import Path

from holdfast.host.checks import CheckContext, unknown_reasons
from holdfast.host.checks.network.interfaces import inspect, own_addresses

from .trees import host, network

TAKEN = "fd000000000000000000000000000007 02 40 00 88     eth0\n"


def test_interfaces_of_this_host():
    result = inspect(CheckContext())
    assert {one.name for one in result.interfaces} == {name for _, name in socket.if_nameindex()}
    loopback = next(one for one in result.interfaces if one.name == "lo")
    assert loopback.loopback
    assert "127.0.0.1" in own_addresses(CheckContext())
    assert loopback.mtu == int(Path("/sys/class/net/lo/mtu").read_text())


def test_a_recorded_host(tmp_path):
    files = network(
        {
            "lo": ("127.0.0.1/8", {"flags": "0x9", "mtu": "65536"}),
            "eth0": (
                "10.1.2.3/16",
                {"speed": "25000", "carrier": "1", "duplex": "full", "errors": 3},
            ),
            "docker0": ("172.17.0.1/16", {"carrier": "0"}),
            "eth1": ("", {"flags": "0x1002"}),
        },
        version6=TAKEN,
    )
    result = inspect(host(tmp_path, files))
    by_name = {one.name: one for one in result.interfaces}
    assert by_name["eth0"].addresses == ("10.1.2.3/16", "fd00::7/64")
    assert by_name["eth0"].duplicates == ("fd00::7/64",)
    assert (by_name["eth0"].speed_mbit, by_name["eth0"].errors, by_name["eth0"].packets) == (
        25000,
        3,
        1_000_000,
    )
    assert by_name["eth0"].routable_addresses(6) == ["fd00::7/64"]
    assert by_name["docker0"].is_virtual
    assert by_name["docker0"].carrier is False
    assert by_name["eth1"].up is False
    assert by_name["eth1"].carrier is None
    assert unknown_reasons(result) == ()
    assert (
        result.facts()[0].text
        == "eth0: up, 25000 Mbit/s, MTU 1500, 10.1.2.3/16, fd00::7/64, 3 errors"
    )


def test_a_host_without_readable_files(tmp_path):
    result = inspect(host(tmp_path))
    assert unknown_reasons(result) == (f"{tmp_path}/proc/net/dev is not there",)
