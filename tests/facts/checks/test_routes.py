"""Routes, and the way to an endpoint: by the kernel here, by its table in a recorded tree."""

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.routes import look, towards
from holdfast.findings import Unknown

from .trees import host, network

TWO = network(
    {"lo": ("127.0.0.1/8", {}), "eth0": ("10.1.0.5/16", {}), "ib0": ("10.2.0.5/16", {})},
    [("eth0", "0.0.0.0/0", "10.1.0.1", 100), ("ib0", "10.9.0.0/16", "10.2.0.1", 0),
     ("lo", "10.8.0.0/16", "0.0.0.0", 0, 0x201)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("address", "interface", "source", "gateway"),
    [
        ("10.2.7.7", "ib0", "10.2.0.5", None),
        ("10.9.1.1", "ib0", "10.2.0.5", "10.2.0.1"),
        ("8.8.8.8", "eth0", "10.1.0.5", "10.1.0.1"),
    ],
)
def test_the_longest_prefix_counts(tmp_path, address, interface, source, gateway):
    way = towards(host(tmp_path, TWO), address)
    assert (way.interface, way.source, way.gateway, way.refused) == (interface, source, gateway, "")


def test_addresses_without_a_way(tmp_path):
    place = host(tmp_path, TWO)
    assert towards(place, "10.8.1.1").refused == "no route"
    assert towards(place, "fd00::1").refused == "no route"
    assert towards(place, "10.2.0.5").local


def test_here_the_kernel_is_asked():
    way = towards(Place(), "127.0.0.1", 29500)
    assert (way.interface, way.local) == ("lo", True)
    seen = look(Place(endpoint=("localhost", 29500)))
    assert all(way.local for way in seen.ways)
    assert seen.ways


def test_an_endpoint_without_an_address(tmp_path):
    assert look(host(tmp_path, TWO | {"/etc/hosts": ""}, endpoint=("node7", 1))).ways == ()
    assert isinstance(look(host(tmp_path / "b", TWO, endpoint=("node7", 1))).ways, Unknown)


def test_no_endpoint_no_way(tmp_path):
    seen = look(host(tmp_path, TWO))
    assert (seen.endpoint, seen.ways) == (None, ())
    assert seen.facts()[0].text == "routes: 6, default through eth0 by 10.1.0.1"


def test_a_way_in_words(tmp_path):
    by_address = look(host(tmp_path, TWO, endpoint=("10.9.1.1", 29500)))
    assert by_address.facts()[0].text == "way to 10.9.1.1: through ib0, from 10.2.0.5, by 10.2.0.1"
    by_name = look(host(tmp_path, {"/etc/hosts": "10.8.1.1 node8\n"}, endpoint=("node8", 29500)))
    assert by_name.facts()[0].text == "way to node8: 10.8.1.1, no route"
