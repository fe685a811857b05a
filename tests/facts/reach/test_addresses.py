"""Which address gloo and NCCL would give to their peers."""

import pytest

from holdfast.facts.reach import Interface
from holdfast.facts.reach.addresses import interfaces, is_own, published, source_to
from holdfast.findings import Unknown

KNOWN = (
    Interface("lo", "127.0.0.1", 65536), Interface("docker0", "172.17.0.1", 1500), Interface("eth0", "10.0.0.1", 1500),
    Interface("eth1", "10.1.0.1", 9000), Interface("ib0", "10.2.0.1", 2044),
)  # fmt: skip


def nccl(known=KNOWN, **environ):
    return published(environ, known, ("127.0.0.1",))[1]


@pytest.mark.parametrize(
    ("wanted", "interface"),
    [
        ("eth", "eth0"), ("=eth1", "eth1"), ("^lo,docker,ib", "eth0"), ("^=eth0,lo,docker0", "eth1"),
        ("eth1,eth0", "eth0"), ("", "ib0"),
    ],
)  # fmt: skip
def test_nccl(wanted, interface):
    assert nccl(NCCL_SOCKET_IFNAME=wanted).interface == interface


def test_nccl_without_infiniband_and_with_nothing_that_fits():
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
    assert published(environ, KNOWN, own_name)[0].address == address


def test_gloo_knows_whole_names_only():
    assert isinstance(published({"GLOO_SOCKET_IFNAME": "^lo"}, KNOWN, ())[0].address, Unknown)


def test_this_host():
    assert any(each.address == "127.0.0.1" for each in interfaces())
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.77")
    assert source_to("127.0.0.5") == "127.0.0.1"
