"""Processes that hold a port, with a real socket of this test process."""

import os
import socket

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.ports import describe_holder, inspect

from .trees import host, network

_ROW = "   0: 00000000:733C 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0   0 {inode} 1 0 100 0\n"
_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def test_a_listener_of_this_process_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = inspect(CheckContext(ports=(port, port), endpoint=("localhost", port)))
        (holder,) = result.holders
        assert (holder.port, holder.listens, holder.pid) == (port, True, os.getpid())
        assert describe_holder(holder) == f"in use by {holder.program} (pid {os.getpid()})"
        assert result.endpoint == port
    assert inspect(CheckContext(ports=(port, port))).holders == ()


def test_both_ip_versions_are_read():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        assert [holder.port for holder in inspect(CheckContext(ports=(port, port))).holders] == [
            port
        ]


def test_an_inaccessible_holder(tmp_path):
    files = {
        "/proc/net/tcp": _HEAD + _ROW.format(state="0A", inode=4711),
        "/proc/sys/net/ipv4/ip_local_port_range": "1024\t65535\n",
    }
    result = inspect(
        host(tmp_path, network({"eth0": ("10.1.0.5/16", {})}) | files, endpoint=("10.1.0.6", 29500))
    )
    (holder,) = result.holders
    assert holder.port == 29500
    assert isinstance(holder.pid, Unknown)
    assert describe_holder(holder) == "in use by a process of another user or container"
    assert result.ephemeral == (1024, 65535)
    assert result.endpoint is None


def test_a_closing_socket_does_not_block_the_port(tmp_path):
    files = {"/proc/net/tcp": _HEAD + _ROW.format(state="06", inode=0)}
    assert inspect(host(tmp_path, files)).holders == ()


def test_no_table(tmp_path):
    assert isinstance(inspect(host(tmp_path)).holders, Unknown)
