"""The address that a node publishes to the others."""

import pytest

from holdfast.launcher import local_address
from holdfast.launcher.local_address import published_address


@pytest.mark.parametrize("endpoint", ["localhost", "127.0.0.1", "127.0.0.5"])
def test_nodes_on_one_machine_use_loopback(endpoint):
    assert published_address(endpoint) == "127.0.0.1"


def test_a_name_that_leads_to_loopback_is_replaced_by_an_address_of_this_host(monkeypatch):
    monkeypatch.setattr(local_address, "_resolve", lambda _: ["127.0.1.1"])
    outside = local_address._source(local_address._OUTSIDE)
    if not outside and local_address._first_interface_address() is None:
        pytest.skip("this machine has only loopback")
    assert not str(published_address("node0")).startswith("127.")


def test_without_route_or_resolver_torch_publishes_the_name():
    assert published_address("no-such-host.invalid") is None
