"""Two hosts in name spaces: they reach each other, what is cut is cut, and nothing stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.actions.chaos import hosts

pytestmark = pytest.mark.skipif(bool(hosts.why_not()), reason=hosts.why_not())
LISTENS = """
import socket
with socket.create_server(("", 29577)) as server:
    print("listens", flush=True)
    while True:
        server.accept()[0].close()
"""
CALLS = "import socket; socket.create_connection((%r, 29577), timeout=1.5).close()"


def reached(host, name):
    done = subprocess.run([*host.words, sys.executable, "-c", CALLS % name], capture_output=True, check=False)
    return done.returncode == 0


def test_hosts_that_are_cut_off_and_healed(tmp_path):
    with hosts.joined(tmp_path) as (first, second):
        command = [*first.words, sys.executable, "-c", LISTENS]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as listener:
            assert listener.stdout.readline() == b"listens\n"
            assert listener.pid in {process.pid for process in first.processes()}
            assert not list(second.processes())
            assert reached(second, "node0")
            assert reached(second, first.address)
            for fault in (lambda: second.cut("input"), lambda: second.cut("output"), lambda: first.block("29577")):
                fault()
                assert not reached(second, first.address)
                first.mend()
                second.mend()
                assert reached(second, first.address)
            listener.kill()
        assert (first.shared(), second.shared()) == ([], [])
