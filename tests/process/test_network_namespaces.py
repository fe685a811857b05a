"""The hosts that tests of networks stand on: each fault is what it says, and nothing of the machine is touched."""

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
#: Serves, and sends back as many bytes as it got.
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
    with hosts(2) as made:
        server = made[0].start(sys.executable, "-c", SERVER)
        until = time.monotonic() + 20
        while "ready" not in server.output:
            assert time.monotonic() < until, server.errors
            time.sleep(0.02)
        yield made


@pytest.fixture
def first(pair):
    yield pair[0]
    pair[0].mend()


@pytest.fixture
def second(pair):
    yield pair[1]
    pair[1].mend()


def asked(host, address="node0", size=1):
    client = host.start(sys.executable, "-c", CLIENT, address, size)
    client.wait()
    return client.output.strip() or client.errors


def test_hosts_talk_by_name(first, second):
    assert first.do("hostname") + second.do("hostname") == "node0\nnode1\n"
    assert asked(second) == "ok"
    assert asked(second, size=4 << 20) == "ok"
    assert asked(first, "127.0.0.1") == "ok"


@pytest.mark.parametrize("direction", ["in", "out"])
def test_dropped_packets_are_silence(direction, first, second):
    if direction == "in":
        first.drop(port=PORT)
    else:
        second.drop(port=PORT, direction="out")
    assert asked(second) == "TimeoutError None"
    first.mend(), second.mend()
    assert asked(second) == "ok"


@pytest.mark.parametrize(
    ("told", "errno"),
    [("icmpx port-unreachable", 111), ("icmpx admin-prohibited", 113), ("tcp reset", 111)],
)
def test_refused_packets_are_an_error_at_once(told, errno, first, second):
    first.reject(port=PORT, told=told)
    assert asked(second).endswith(f" {errno}")
    assert asked(first, "127.0.0.1") == "ok"


def test_a_fault_is_of_one_port_or_one_peer(first, second):
    first.drop(port="29501-60999")
    assert asked(second) == "ok"
    first.drop(peer=first)
    assert asked(second) == "ok"
    first.drop(peer=second)
    assert asked(second) == "TimeoutError None"
    assert asked(first, "127.0.0.1") == "ok"


def test_large_packets_alone_are_lost(first, second):
    first.lose_large()
    assert asked(second) == "ok"
    assert asked(second, size=4 << 20) == "TimeoutError None"


def test_a_link_that_is_down_has_no_route(first, second):
    second.link("down")
    assert asked(second, first.address) == "OSError 101"
    second.link("up")
    assert asked(second) == "ok"


def test_nobody_is_at_an_address_and_no_name_is_known_elsewhere(second):
    assert asked(second, NOBODY) in (
        "OSError 113",
        "TimeoutError None",
    )  # the client is as patient as the kernel
    assert asked(second, "node7").startswith("gaierror")
    assert asked(second, "10.9.9.9") == "OSError 101"


def test_each_host_has_its_own_names_and_processes(first, second):
    second.names({"node0": "127.0.1.1"})
    assert asked(second) == "ConnectionRefusedError 111"
    second.names({"node0": first.address})
    assert asked(second) == "ok"
    assert "socket.create_server" not in second.do("sh", "-c", "cat /proc/[0-9]*/cmdline")


def test_a_clock_can_be_fast(second):
    def off():
        told = second.start(sys.executable, "-c", "import time; print(time.time())")
        told.wait()
        return float(told.output) - time.time()

    assert -2 < off() < 0
    second.shift_clock(3)
    assert 1 < off() < 3


def test_a_link_can_be_slow(second):
    second.limit("20mbit")
    began = time.monotonic()
    assert asked(second, size=1 << 20) == "ok"
    assert time.monotonic() - began > 0.35  # 8.4 Mbit


def test_a_link_can_have_latency():
    with hosts(2, round_trip_ms=200) as (first, second):
        began = time.monotonic()
        assert asked(second, first.address) == "ConnectionRefusedError 111"
        assert time.monotonic() - began > 0.2
        first.drop(port=PORT)
        assert asked(second, first.address) == "TimeoutError None"


def test_nothing_of_the_machine_is_touched_and_nothing_stays():
    def machine():
        links = subprocess.run(
            ["ip", "-br", "link"], capture_output=True, text=True, check=True
        ).stdout
        rules = subprocess.run(
            ["nft", "list", "ruleset"], capture_output=True, text=True, check=True
        ).stdout
        return links, rules, socket.gethostname(), Path("/etc/hosts").read_text()

    before = machine()
    with hosts(2) as made:
        made[0].drop()
        sleeper = made[0].start("sleep", "1000")
        folders = [host.folder for host in made]
        assert machine() == before
    assert sleeper.process.poll() is not None
    assert not any(folder.exists() for folder in folders)
    assert machine() == before
