"""The kernel's neighbour table."""

from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.neighbours import inspect

from .trees import host, neighbours, network

FILES = network({"eth0": ("10.1.0.5/16", {})}, [("eth0", "0.0.0.0/0", "10.1.0.1", 100)])
ROWS = neighbours(("10.1.0.1", "eth0", True), ("10.1.0.9", "eth0", False))


def test_rows_and_the_required_address(tmp_path):
    limit = {"/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n"}
    result = inspect(host(tmp_path, FILES | ROWS | limit, endpoint=("10.1.0.9", 29500)))
    assert [(row.address, row.answers) for row in result.table] == [
        ("10.1.0.1", True),
        ("10.1.0.9", False),
    ]
    assert (result.required, result.maximum) == ("10.1.0.9", 1024)
    assert [fact.text for fact in result.facts()] == [
        "neighbours: 2, 1 without an answer",
        "maximum neighbours: 1024",
        "10.1.0.9: no answer on eth0",
    ]


def test_the_gateway_is_required_for_a_host_of_another_network(tmp_path):
    assert (
        inspect(host(tmp_path, FILES | ROWS, endpoint=("10.7.0.1", 29500))).required == "10.1.0.1"
    )
    assert inspect(host(tmp_path, FILES | ROWS)).required == "10.1.0.1"


def test_this_host():
    assert isinstance(inspect(CheckContext()).table, tuple)
