"""Ports that the rendezvous needs: who holds them, and whether outgoing connections may take them.

Read from /proc/net/tcp and tcp6; whose socket it is from /proc/<pid>/fd, as far as those may be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.interfaces import own
from holdfast.facts.resolver import ask
from holdfast.findings import Fact, Unknown

_LISTENS, _ENDED = "0A", frozenset({"06", "07"})  # of <net/tcp_states.h>; TIME_WAIT does not keep a server from binding
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"

_SPANS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A socket at one of the ports. ``pid`` and ``program`` are Unknown where another user's are closed to us."""

    port: int
    listens: bool
    pid: int | Unknown
    program: str | Unknown


class Ports(Seen, frozen=True, kw_only=True):
    """``wanted`` are first and last; ``ephemeral`` those that the kernel gives to outgoing connections.

    ``endpoint`` is the rendezvous' port where that is this host's own.
    """

    wanted: tuple[int, int]
    held: tuple[Holder, ...] | Unknown
    ephemeral: tuple[int, int] | Unknown
    reserved: str = ""
    endpoint: int | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        first, last = self.wanted
        if isinstance(self.held, Unknown):
            return (fact(f"ports {first}-{last}", self.held, "/proc/net/tcp"),)
        taken = ", ".join(str(port) for port in sorted({each.port for each in self.held}))
        told = [fact(f"ports {first}-{last}", f"{taken} taken" if taken else "free", "/proc/net/tcp")]
        told += [fact(f"port {each.port}", said(each), "/proc/net/tcp, /proc/*/fd") for each in self.held]
        text = self.ephemeral if isinstance(self.ephemeral, Unknown) else f"{self.ephemeral[0]}-{self.ephemeral[1]}"
        told.append(fact("ports of outgoing connections", text, _RANGE))
        return (*told, *((fact("of these reserved", self.reserved, _RESERVED),) if self.reserved else ()))


def said(holder: Holder) -> str:
    """Who it is, in words."""
    who = (
        "a process that is closed to us" if isinstance(holder.pid, Unknown) else f"{holder.program} (pid {holder.pid})"
    )
    return f"held by {who}{'' if holder.listens else ', for a connection'}"


def look(place: Place) -> Ports:
    """Read the tables; nothing is bound, as that could keep a job from its port."""
    endpoint = _own_port(place)
    span = proc.text(place.path(_RANGE))
    words = span.split() if isinstance(span, str) else []
    reserved = proc.text(place.path(_RESERVED))
    return Ports(
        wanted=place.ports,
        held=_held(place, {*range(place.ports[0], place.ports[1] + 1), *(() if endpoint is None else (endpoint,))}),
        ephemeral=(int(words[0]), int(words[1])) if len(words) == 2 else Unknown(f"{_RANGE} is not what Linux writes"),
        reserved=reserved.strip() if isinstance(reserved, str) and _SPANS.fullmatch(reserved.strip()) else "",
        endpoint=endpoint,
    )


def _own_port(place: Place) -> int | None:
    """The endpoint's, where its name means this host; a name that DNS must know is left to the check of names."""
    if place.endpoint is None:
        return None
    name, port = place.endpoint
    found = ask(place, name, limit_s=1.0).addresses
    return port if set(found) & {*own(place), "127.0.0.1", "::1"} else None


def _held(place: Place, wanted: set[int]) -> tuple[Holder, ...] | Unknown:
    found: dict[str, tuple[int, bool]] = {}
    tables = [proc.text(place.path(f"/proc/net/{name}"), 64 << 20) for name in ("tcp", "tcp6")]
    if isinstance(tables[0], Unknown):
        return tables[0]
    for table in tables:
        for line in () if isinstance(table, Unknown) else table.splitlines()[1:]:
            words = line.split()
            port = int(words[1].rpartition(":")[2], 16)
            if port in wanted and words[3] not in _ENDED:
                found[words[9]] = (port, words[3] == _LISTENS)
    owners = _owners(place, found) if found else {}
    return tuple(sorted((_holder(place, found[inode], owners.get(inode)) for inode in found),
                        key=lambda each: (each.port, not each.listens)))  # fmt: skip


def _holder(place: Place, held: tuple[int, bool], pid: int | None) -> Holder:
    why = Unknown(f"port {held[0]}: the process that holds it is of another user, or of another container")
    stat = why if pid is None else proc.stat(pid, place.path("/proc"))
    return Holder(port=held[0], listens=held[1], pid=why if pid is None else pid,
                  program=stat if isinstance(stat, Unknown) else stat.name)  # fmt: skip


def _owners(place: Place, inodes: Mapping[str, object]) -> dict[str, int]:
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for pid, link in _links(place):
        if link in wanted:
            found.setdefault(wanted[link], pid)
    return found


def _links(place: Place) -> Iterator[tuple[int, str]]:
    """Process and open file, for all processes whose files may be seen."""
    for process in place.path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                for entry in (process / "fd").iterdir():
                    with suppress(OSError):
                        yield int(process.name), str(entry.readlink())
