"""Routes to an endpoint: by the kernel on this host, by the table of a recorded tree."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.routes import inspect, lookup_route

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
    way = lookup_route(host(tmp_path, TWO), address)
    assert (way.interface, way.source, way.gateway, way.refused) == (interface, source, gateway, "")


def test_addresses_without_a_route(tmp_path):
    context = host(tmp_path, TWO)
    assert lookup_route(context, "10.8.1.1").refused == "no route"
    assert lookup_route(context, "fd00::1").refused == "no route"
    assert lookup_route(context, "10.2.0.5").local


def test_the_kernel_looks_up_routes_of_this_host():
    way = lookup_route(CheckContext(), "127.0.0.1", 29500)
    assert (way.interface, way.local) == ("lo", True)
    result = inspect(CheckContext(endpoint=("localhost", 29500)))
    assert all(way.local for way in result.routes)
    assert result.routes


def test_an_endpoint_without_an_address(tmp_path):
    assert inspect(host(tmp_path, TWO | {"/etc/hosts": ""}, endpoint=("node7", 1))).routes == ()
    assert isinstance(inspect(host(tmp_path / "b", TWO, endpoint=("node7", 1))).routes, Unknown)


def test_no_endpoint_no_route(tmp_path):
    result = inspect(host(tmp_path, TWO))
    assert (result.endpoint, result.routes) == (None, ())
    assert result.facts()[0].text == "routes: 6, default via 10.1.0.1 dev eth0"


def test_route_facts(tmp_path):
    by_address = inspect(host(tmp_path, TWO, endpoint=("10.9.1.1", 29500)))
    assert by_address.facts()[0].text == "route to 10.9.1.1: dev ib0, src 10.2.0.5, via 10.2.0.1"
    by_name = inspect(host(tmp_path, {"/etc/hosts": "10.8.1.1 node8\n"}, endpoint=("node8", 29500)))
    assert by_name.facts()[0].text == "route to node8: 10.8.1.1, no route"
