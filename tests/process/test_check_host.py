"""`holdfast check` on simulated hosts in namespaces: it reports each fault in time, changing nothing."""

import json
import socket
import subprocess
import sys
import time

import pytest

from tests.network_namespaces import NOBODY, hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

_SCRIPT = """
import json, sys
from holdfast.preflight.check import check_host
from holdfast.host.checks import CheckContext
from holdfast.core import settings
import msgspec
endpoint = (sys.argv[1], 29500) if len(sys.argv) > 1 else None
report = check_host(CheckContext(environ=settings.current_environment(), endpoint=endpoint))
print(json.dumps({"elapsed_s": report.elapsed_s, "checks": msgspec.to_builtins(report.checks)}))
"""


def check(host, *words, **variables):
    """Return the findings as (check, level, cause), and the elapsed seconds."""
    done = host.start(sys.executable, "-c", _SCRIPT, *words, **variables)
    assert done.wait(30) == 0, done.errors
    report = json.loads(done.output)
    return {
        (each["name"], claim["level"], claim["cause"])
        for each in report["checks"]
        for claim in each["findings"]
    }, report["elapsed_s"]


@pytest.fixture(scope="module")
def pair():
    with hosts(2) as both:
        yield both


NETWORK = {"interfaces", "routes", "neighbours", "tcp", "names", "hosts-file", "ports", "firewall"}


def network_findings(claims):
    return {claim for claim in claims if claim[0] in NETWORK}


def test_a_healthy_host_has_no_findings(pair):
    one, two = pair
    claims, elapsed_s = check(one, two.address)
    assert network_findings(claims) == set()
    assert elapsed_s < 5


def test_a_host_name_that_resolves_to_loopback_is_reported(pair):
    one, two = pair
    one.names({one.name: "127.0.1.1", two.name: two.address})
    try:
        assert ("hosts-file", "error", "hostname-resolution") in check(one, two.address)[0]
        assert ("hosts-file", "warning", "hostname-resolution") in check(one)[0]
    finally:
        one.names({one.name: one.address, two.name: two.address})


def test_a_missing_route_and_a_wrong_interface_are_reported(pair):
    one, two = pair
    assert network_findings(check(one, "198.51.100.1")[0]) == {
        ("routes", "error", "master-unreachable")
    }
    claims = network_findings(check(one, two.address, GLOO_SOCKET_IFNAME="eth9")[0])
    assert ("interfaces", "error", "network-interface-wrong") in claims


def test_a_port_in_use_is_reported(pair):
    one, _ = pair
    listener = one.start(sys.executable, "-m", "http.server", "29500", "--bind", "0.0.0.0")
    try:
        for _ in range(100):
            if "29500" in one.do("ss", "-ltn"):
                break
            time.sleep(0.1)
        assert network_findings(check(one, one.address)[0]) == {("ports", "error", "port-in-use")}
    finally:
        listener.kill()


def test_an_unreachable_name_server_is_reported_in_seconds(pair):
    one, _ = pair
    one.resolver(NOBODY)
    try:
        claims, elapsed_s = check(one, "node7.cluster.invalid")
    finally:
        one.resolver("127.0.0.1")
    assert ("names", "error", "hostname-resolution") in claims
    assert elapsed_s < 5


def test_a_neighbour_without_arp_reply_is_reported(pair):
    one, _ = pair
    one.do("sh", "-c", f"ip neigh replace {NOBODY} dev eth0 nud incomplete")
    claims, _ = check(one, NOBODY)
    assert network_findings(claims) == {("neighbours", "warning", "master-unreachable")}


def test_interfaces_are_read_from_the_hosts_network_namespace(pair):
    one, _ = pair
    script = (
        "from holdfast.host.checks import CheckContext; from holdfast.host.checks.network.interfaces import inspect\n"
        "print([(each.mtu, each.up, each.carrier) for each in inspect(CheckContext()).interfaces if each.name == 'eth0'])"
    )
    one.mtu(1432)
    try:
        assert one.do(sys.executable, "-c", script) == "[(1432, True, True)]\n"
    finally:
        one.mtu(1500)


def test_check_does_not_change_the_host(pair):
    one, two = pair
    commands = (
        ("nft", "list", "ruleset"),
        ("ip", "-4", "addr"),
        ("ip", "route"),
        ("sysctl", "-a", "--pattern", "^(net.ipv4|vm)"),
    )
    available = [
        command
        for command in commands
        if subprocess.run(["which", command[0]], capture_output=True, check=False).returncode == 0
    ]
    before = [one.do(*command) for command in available]
    check(one, two.address)
    assert [one.do(*command) for command in available] == before


def test_the_command_runs_only_the_selected_checks(pair):
    one, _ = pair
    done = one.start(
        sys.executable,
        "-m",
        "holdfast",
        "check",
        "--only",
        "ports",
        "--only",
        "hosts-file",
        "--json",
    )
    assert done.wait(30) == 0
    report = json.loads(done.output)
    assert [each["name"] for each in report["checks"]] == ["hosts-file", "ports"]
    assert {each["host"] for each in report["checks"]} == {one.name}
    assert socket.gethostname() not in {each["host"] for each in report["checks"]}


def test_the_endpoint_is_read_from_the_environment(pair):
    one, two = pair
    words = (sys.executable, "-m", "holdfast", "check", "--only", "routes", "--json")
    for variables, status in (
        ({"MASTER_ADDR": two.address, "MASTER_PORT": "29501"}, 0),
        ({"MASTER_ADDR": "198.51.100.1"}, 1),
        ({"PET_RDZV_ENDPOINT": "198.51.100.1:29500", "MASTER_ADDR": two.address}, 1),
        ({"MASTER_ADDR": two.address, "MASTER_PORT": "many"}, 2),
    ):
        done = one.start(*words, **variables)
        assert done.wait(30) == status, done.errors
        assert "Traceback" not in done.errors
