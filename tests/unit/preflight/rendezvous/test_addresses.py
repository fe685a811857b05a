"""Addresses that gloo and NCCL would publish."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.preflight.rendezvous import InterfaceAddress
from holdfast.preflight.rendezvous.addresses import (
    is_own,
    list_interfaces,
    published_addresses,
    source_to,
)

KNOWN = (
    InterfaceAddress("lo", "127.0.0.1", 65536),
    InterfaceAddress("docker0", "172.17.0.1", 1500),
    InterfaceAddress("eth0", "10.0.0.1", 1500),
    InterfaceAddress("eth1", "10.1.0.1", 9000),
    InterfaceAddress("ib0", "10.2.0.1", 2044),
)


def nccl(known=KNOWN, **environ):
    return published_addresses(environ, known, ("127.0.0.1",))[1]


@pytest.mark.parametrize(
    ("setting", "interface"),
    [
        ("eth", "eth0"),
        ("=eth1", "eth1"),
        ("^lo,docker,ib", "eth0"),
        ("^=eth0,lo,docker0", "eth1"),
        ("eth1,eth0", "eth0"),
        ("", "ib0"),
    ],
)
def test_nccl(setting, interface):
    assert nccl(NCCL_SOCKET_IFNAME=setting).interface == interface


def test_nccl_without_infiniband_and_without_a_matching_interface():
    assert nccl(KNOWN[:3]).interface == "eth0"
    assert nccl(KNOWN[:2]).interface == "docker0"
    assert nccl(KNOWN[:1]).interface == "lo"
    assert isinstance(nccl(NCCL_SOCKET_IFNAME="bond").address, Unknown)


@pytest.mark.parametrize(
    ("environ", "own_name", "address"),
    [
        ({"GLOO_SOCKET_IFNAME": "eth1"}, ("127.0.1.1",), "10.1.0.1"),
        ({}, ("127.0.1.1",), "127.0.1.1"),
        ({}, ("192.0.2.77",), "127.0.0.1"),
        ({}, Unknown("Name or service not known"), "127.0.0.1"),
    ],
)
def test_gloo(environ, own_name, address):
    assert published_addresses(environ, KNOWN, own_name)[0].address == address


def test_gloo_requires_exact_names():
    assert isinstance(
        published_addresses({"GLOO_SOCKET_IFNAME": "^lo"}, KNOWN, ())[0].address, Unknown
    )


def test_this_host():
    assert any(each.address == "127.0.0.1" for each in list_interfaces())
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.77")
    assert source_to("127.0.0.5") == "127.0.0.1"
