"""Ports of the rendezvous: processes that hold them, and the ephemeral range.

Sockets are read from /proc/net/tcp and tcp6, their owners from /proc/<pid>/fd where permitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network.interfaces import own_addresses
from holdfast.host.checks.network.resolver import resolve_name
from holdfast.host.processes import proc

#: Of <net/tcp_states.h>; TIME_WAIT does not prevent a server from binding.
_LISTEN, _CLOSED_STATES = "0A", frozenset({"06", "07"})
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"

_PORT_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)


class PortHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A socket on one of the ports.

    ``pid`` and ``program`` are Unknown for inaccessible processes (other users).
    """

    port: int
    listens: bool
    pid: int | Unknown
    program: str | Unknown


class PortsResult(CheckResult, frozen=True, kw_only=True):
    """``wanted``: first and last port.

    ``ephemeral``: range that the kernel assigns to outgoing connections. ``endpoint``: the
    rendezvous port if the endpoint is this host.
    """

    wanted: tuple[int, int]
    holders: tuple[PortHolder, ...] | Unknown
    ephemeral: tuple[int, int] | Unknown
    reserved: str = ""
    endpoint: int | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        first, last = self.wanted
        if isinstance(self.holders, Unknown):
            return (check_fact(f"ports {first}-{last}", self.holders, "/proc/net/tcp"),)
        taken = ", ".join(str(port) for port in sorted({holder.port for holder in self.holders}))
        facts = [
            check_fact(
                f"ports {first}-{last}", f"{taken} in use" if taken else "free", "/proc/net/tcp"
            )
        ]
        facts += [
            check_fact(f"port {holder.port}", describe_holder(holder), "/proc/net/tcp, /proc/*/fd")
            for holder in self.holders
        ]
        text = (
            self.ephemeral
            if isinstance(self.ephemeral, Unknown)
            else f"{self.ephemeral[0]}-{self.ephemeral[1]}"
        )
        facts.append(check_fact("ephemeral ports", text, _RANGE))
        if self.reserved:
            facts.append(check_fact("reserved ports", self.reserved, _RESERVED))
        return tuple(facts)


def describe_holder(holder: PortHolder) -> str:
    """Return the process that holds a port, in words."""
    process = (
        "a process of another user or container"
        if isinstance(holder.pid, Unknown)
        else f"{holder.program} (pid {holder.pid})"
    )
    return f"in use by {process}{'' if holder.listens else ' for a connection'}"


def inspect(context: CheckContext) -> PortsResult:
    """Read the tables. No port is bound: that could block a starting job."""
    endpoint = _own_endpoint_port(context)
    content = proc.read_text(context.path(_RANGE))
    words = content.split() if isinstance(content, str) else []
    reserved = proc.read_text(context.path(_RESERVED))
    return PortsResult(
        wanted=context.ports,
        holders=_sockets_on(
            context,
            {
                *range(context.ports[0], context.ports[1] + 1),
                *(() if endpoint is None else (endpoint,)),
            },
        ),
        ephemeral=(int(words[0]), int(words[1]))
        if len(words) == 2
        else Unknown(f"{_RANGE} has an unexpected format"),
        reserved=reserved.strip()
        if isinstance(reserved, str) and _PORT_LIST.fullmatch(reserved.strip())
        else "",
        endpoint=endpoint,
    )


def _own_endpoint_port(context: CheckContext) -> int | None:
    """Return the endpoint's port if its name resolves to this host.

    The check `names` judges the resolution.
    """
    if context.endpoint is None:
        return None
    name, port = context.endpoint
    addresses = resolve_name(context, name, limit_s=1.0).addresses
    return port if set(addresses) & {*own_addresses(context), "127.0.0.1", "::1"} else None


def _sockets_on(context: CheckContext, wanted: set[int]) -> tuple[PortHolder, ...] | Unknown:
    sockets: dict[str, tuple[int, bool]] = {}
    tables = [
        proc.read_text(context.path(f"/proc/net/{name}"), 64 << 20) for name in ("tcp", "tcp6")
    ]
    if isinstance(tables[0], Unknown):
        return tables[0]
    for table in tables:
        for line in () if isinstance(table, Unknown) else table.splitlines()[1:]:
            words = line.split()
            port = int(words[1].rpartition(":")[2], 16)
            if port in wanted and words[3] not in _CLOSED_STATES:
                sockets[words[9]] = (port, words[3] == _LISTEN)
    owners = _socket_owners(context, sockets) if sockets else {}
    holders = (
        _port_holder(context, *socket, owners.get(inode)) for inode, socket in sockets.items()
    )
    return tuple(sorted(holders, key=lambda holder: (holder.port, not holder.listens)))


def _port_holder(
    context: CheckContext,
    port: int,
    listens: bool,  # noqa: FBT001
    pid: int | None,
) -> PortHolder:
    why = Unknown(f"port {port}: held by a process of another user or container")
    stat = why if pid is None else proc.read_stat(pid, context.path("/proc"))
    return PortHolder(
        port=port,
        listens=listens,
        pid=why if pid is None else pid,
        program=stat if isinstance(stat, Unknown) else stat.name,
    )


def _socket_owners(context: CheckContext, inodes: Mapping[str, object]) -> dict[str, int]:
    inode_of = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[str, int] = {}
    for pid, link in _open_files(context):
        if link in inode_of:
            owners.setdefault(inode_of[link], pid)
    return owners


def _open_files(context: CheckContext) -> Iterator[tuple[int, str]]:
    """Yield pid and open file of all accessible processes."""
    for process in context.path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                for entry in (process / "fd").iterdir():
                    with suppress(OSError):
                        yield int(process.name), str(entry.readlink())
