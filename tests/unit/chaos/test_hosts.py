"""Hosts in network namespaces: connected, cut, restored, and removed afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.chaos import network_hosts

pytestmark = pytest.mark.skipif(
    bool(network_hosts.unsupported_reason()), reason=network_hosts.unsupported_reason()
)
LISTENS = """
import socket
with socket.create_server(("", 29577)) as server:
    print("listens", flush=True)
    while True:
        server.accept()[0].close()
"""
CALLS = "import socket; socket.create_connection((%r, 29577), timeout=1.5).close()"


def reached(host, name):
    done = subprocess.run(
        [*host.command_prefix, sys.executable, "-c", CALLS % name], capture_output=True, check=False
    )
    return done.returncode == 0


def test_hosts_are_cut_and_restored(tmp_path):
    with network_hosts.connected_hosts(tmp_path) as (first, second):
        command = [*first.command_prefix, sys.executable, "-c", LISTENS]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as listener:
            assert listener.stdout.readline() == b"listens\n"
            assert listener.pid in {process.pid for process in first.processes()}
            assert not list(second.processes())
            assert reached(second, "node0")
            assert reached(second, first.address)
            for fault in (
                lambda: second.cut("input"),
                lambda: second.cut("output"),
                lambda: first.block("29577"),
            ):
                fault()
                assert not reached(second, first.address)
                first.heal()
                second.heal()
                assert reached(second, first.address)
            listener.kill()
        assert (first.shared_memory(), second.shared_memory()) == ([], [])
