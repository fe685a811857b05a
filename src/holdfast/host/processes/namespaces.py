"""Processes in containers as seen from the host: their own pid, files and connections.

A container has its own namespaces (namespaces(7)): a process has another pid there, its paths lead
to other files, and its connections are not in the host's /proc/net.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.core.findings import Unknown
from holdfast.host.processes import proc

#: How an IPv4 address begins in /proc/net/tcp6.
_MAPPED = "0000000000000000FFFF0000"
_MAX_TABLE_BYTES = 64 << 20


class Endpoint(NamedTuple):
    """One end of a connection; ``address`` is hexadecimal, as in /proc/net/tcp."""

    address: str
    port: int


def own_pid(pid: int) -> int:
    """Return the pid by which the process ``pid`` knows itself."""
    fields = proc.read_fields(f"/proc/{pid}/status")
    pids = fields.get("NSpid", "").split() if isinstance(fields, dict) else []
    return int(pids[-1]) if pids and pids[-1].isdigit() else pid


def file_root(pid: int) -> str:
    """Return the folder below which the files of the process lie; empty if it sees our files."""
    try:
        own, other = (Path(f"/proc/{each}/ns/mnt").readlink() for each in ("self", pid))
    except OSError:
        return ""
    return "" if own == other else f"/proc/{pid}/root"


def tcp_connections(pid: int) -> set[tuple[Endpoint, Endpoint]]:
    """Return local and remote endpoint of the connections of a process, in its own network."""
    try:
        links = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()
    connections = set()
    for name in ("tcp", "tcp6"):
        table = proc.read_text(f"/proc/{pid}/net/{name}", _MAX_TABLE_BYTES)
        for line in () if isinstance(table, Unknown) else table.splitlines()[1:]:
            words = line.split()
            remote = _endpoint(words[2])
            if remote.port and f"socket:[{words[9]}]" in links:
                connections.add((_endpoint(words[1]), remote))
    return connections


def _endpoint(text: str) -> Endpoint:
    address, _, port = text.rpartition(":")
    return Endpoint(address.removeprefix(_MAPPED), int(port, 16))
