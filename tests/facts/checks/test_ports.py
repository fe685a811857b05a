"""Who holds a port: seen of a socket that this test holds."""

import os
import socket

from holdfast.facts.checks import Place
from holdfast.facts.checks.ports import look, said
from holdfast.findings import Unknown

from .trees import host, network

_ROW = "   0: 00000000:733C 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0   0 {inode} 1 0 100 0\n"
_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def test_a_listener_of_this_process_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        seen = look(Place(ports=(port, port), endpoint=("localhost", port)))
        (holder,) = seen.held
        assert (holder.port, holder.listens, holder.pid) == (port, True, os.getpid())
        assert said(holder) == f"held by {holder.program} (pid {os.getpid()})"
        assert seen.endpoint == port
    assert look(Place(ports=(port, port))).held == ()


def test_both_versions_of_ip_are_looked_at():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        assert [holder.port for holder in look(Place(ports=(port, port))).held] == [port]


def test_a_holder_that_is_closed_to_us(tmp_path):
    files = {"/proc/net/tcp": _HEAD + _ROW.format(state="0A", inode=4711),
             "/proc/sys/net/ipv4/ip_local_port_range": "1024\t65535\n"}  # fmt: skip
    seen = look(host(tmp_path, network({"eth0": ("10.1.0.5/16", {})}) | files, endpoint=("10.1.0.6", 29500)))
    (holder,) = seen.held
    assert holder.port == 29500
    assert isinstance(holder.pid, Unknown)
    assert said(holder) == "held by a process that is closed to us"
    assert seen.ephemeral == (1024, 65535)
    assert seen.endpoint is None


def test_what_ends_holds_nothing(tmp_path):
    files = {"/proc/net/tcp": _HEAD + _ROW.format(state="06", inode=0)}
    assert look(host(tmp_path, files)).held == ()


def test_no_table(tmp_path):
    assert isinstance(look(host(tmp_path)).held, Unknown)
