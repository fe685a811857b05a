"""The simulated hosts of network tests: each fault has its effect, and the machine is not changed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.network_namespaces import NOBODY, hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

PORT = 29500
#: Receives a number of bytes, then sends one.
SERVER = f"""
import socketserver
class Peer(socketserver.BaseRequestHandler):
    def handle(self):
        size = int.from_bytes(self.request.recv(4), "big")
        while size:
            size -= len(self.request.recv(size))
        self.request.sendall(b"k")
with socketserver.ThreadingTCPServer(("", {PORT}), Peer) as server:
    print("ready", flush=True)
    server.serve_forever()
"""
CLIENT = f"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], {PORT}), 2) as peer:
        size = int(sys.argv[2])
        peer.sendall(size.to_bytes(4, "big") + bytes(size))
        print("ok" if peer.recv(1) == b"k" else "closed")
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.fixture(scope="module")
def pair():
    with hosts(2) as both:
        server = both[0].start(sys.executable, "-c", SERVER)
        until = time.monotonic() + 20
        while "ready" not in server.output:
            assert time.monotonic() < until, server.errors
            time.sleep(0.02)
        yield both


@pytest.fixture
def first(pair):
    yield pair[0]
    pair[0].mend()


@pytest.fixture
def second(pair):
    yield pair[1]
    pair[1].mend()


def request(host, address="node0", size=1):
    """Send ``size`` bytes to the server; return the client's output."""
    client = host.start(sys.executable, "-c", CLIENT, address, size)
    client.wait()
    return client.output.strip() or client.errors


def test_hosts_connect_by_name(first, second):
    assert first.do("hostname") + second.do("hostname") == "node0\nnode1\n"
    assert request(second) == "ok"
    assert request(second, size=4 << 20) == "ok"
    assert request(first, "127.0.0.1") == "ok"


@pytest.mark.parametrize("direction", ["in", "out"])
def test_dropped_packets_cause_a_timeout(direction, first, second):
    if direction == "in":
        first.drop(port=PORT)
    else:
        second.drop(port=PORT, direction="out")
    assert request(second) == "TimeoutError None"
    first.mend(), second.mend()
    assert request(second) == "ok"


@pytest.mark.parametrize(
    ("reply", "errno"),
    [("icmpx port-unreachable", 111), ("icmpx admin-prohibited", 113), ("tcp reset", 111)],
)
def test_rejected_packets_cause_an_error_at_once(reply, errno, first, second):
    first.reject(port=PORT, told=reply)
    assert request(second).endswith(f" {errno}")
    assert request(first, "127.0.0.1") == "ok"


def test_a_fault_affects_only_its_port_or_peer(first, second):
    first.drop(port="29501-60999")
    assert request(second) == "ok"
    first.drop(peer=first)
    assert request(second) == "ok"
    first.drop(peer=second)
    assert request(second) == "TimeoutError None"
    assert request(first, "127.0.0.1") == "ok"


def test_only_large_packets_are_lost(first, second):
    first.lose_large()
    assert request(second) == "ok"
    assert request(second, size=4 << 20) == "TimeoutError None"


def test_a_link_that_is_down_has_no_route(first, second):
    second.link("down")
    assert request(second, first.address) == "OSError 101"
    second.link("up")
    assert request(second) == "ok"


def test_unused_addresses_and_unknown_names_are_unreachable(second):
    # The timeouts of the client and of the kernel are about equal.
    assert request(second, NOBODY) in ("OSError 113", "TimeoutError None")
    assert request(second, "node7").startswith("gaierror")
    assert request(second, "10.9.9.9") == "OSError 101"


def test_each_host_has_its_own_names_and_processes(first, second):
    second.names({"node0": "127.0.1.1"})
    assert request(second) == "ConnectionRefusedError 111"
    second.names({"node0": first.address})
    assert request(second) == "ok"
    assert "socket.create_server" not in second.do("sh", "-c", "cat /proc/[0-9]*/cmdline")


def test_a_clock_can_be_shifted(second):
    def offset_s():
        clock = second.start(sys.executable, "-c", "import time; print(time.time())")
        clock.wait()
        return float(clock.output) - time.time()

    assert -2 < offset_s() < 0
    second.shift_clock(3)
    assert 1 < offset_s() < 3


def test_a_link_can_be_slow(second):
    second.limit("20mbit")
    began = time.monotonic()
    assert request(second, size=1 << 20) == "ok"
    assert time.monotonic() - began > 0.35  # 8.4 Mbit


def test_a_link_can_have_latency():
    with hosts(2, round_trip_ms=200) as (first, second):
        began = time.monotonic()
        assert request(second, first.address) == "ConnectionRefusedError 111"
        assert time.monotonic() - began > 0.2
        first.drop(port=PORT)
        assert request(second, first.address) == "TimeoutError None"


def test_the_machine_is_not_changed_and_everything_is_removed():
    def machine_state():
        links = subprocess.run(
            ["ip", "-br", "link"], capture_output=True, text=True, check=True
        ).stdout
        rules = subprocess.run(
            ["nft", "list", "ruleset"], capture_output=True, text=True, check=True
        ).stdout
        return links, rules, socket.gethostname(), Path("/etc/hosts").read_text()

    before = machine_state()
    with hosts(2) as both:
        both[0].drop()
        sleeper = both[0].start("sleep", "1000")
        folders = [host.folder for host in both]
        assert machine_state() == before
    assert sleeper.status is not None
    assert not any(folder.exists() for folder in folders)
    assert machine_state() == before
