"""The kernel's table of neighbours."""

from holdfast.facts.checks import Place
from holdfast.facts.checks.neighbours import look

from .trees import host, neighbours, network

FILES = network({"eth0": ("10.1.0.5/16", {})}, [("eth0", "0.0.0.0/0", "10.1.0.1", 100)])
ROWS = neighbours(("10.1.0.1", "eth0", True), ("10.1.0.9", "eth0", False))


def test_rows_and_who_is_needed(tmp_path):
    limit = {"/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n"}
    seen = look(host(tmp_path, FILES | ROWS | limit, endpoint=("10.1.0.9", 29500)))
    assert [(row.address, row.answers) for row in seen.table] == [("10.1.0.1", True), ("10.1.0.9", False)]
    assert (seen.needed, seen.most) == ("10.1.0.9", 1024)
    assert [fact.text for fact in seen.facts()] == [
        "neighbours: 2, 1 of them silent", "neighbours at most: 1024", "10.1.0.9: silent on eth0",
    ]  # fmt: skip


def test_the_gateway_is_needed_for_a_host_elsewhere(tmp_path):
    assert look(host(tmp_path, FILES | ROWS, endpoint=("10.7.0.1", 29500))).needed == "10.1.0.1"
    assert look(host(tmp_path, FILES | ROWS)).needed == "10.1.0.1"


def test_here():
    assert isinstance(look(Place()).table, tuple)
