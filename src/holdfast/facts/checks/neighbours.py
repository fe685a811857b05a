"""Hosts of the own networks as the kernel's table has them: who answers, who does not, and how full the table is."""

from __future__ import annotations

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.routes import table, towards
from holdfast.facts.resolver import is_address
from holdfast.findings import Fact, Unknown

_COMPLETE = 0x2  # ATF_COM of <linux/if_arp.h>
_LIMIT = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"


class Neighbour(msgspec.Struct, frozen=True):
    """A row: nobody with this address has answered where it does not ``answer``."""

    address: str
    interface: str
    answers: bool


class Neighbours(Seen, frozen=True, kw_only=True):
    """The table of IPv4, how many rows it may have, and which address on the own network a job needs.

    ``needed``: the gateway of the way to the endpoint, the endpoint itself, or the default gateway.
    """

    table: tuple[Neighbour, ...] | Unknown
    most: int | None = None
    needed: str | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.table, Unknown):
            return (fact("neighbours", self.table, "/proc/net/arp"),)
        silent = [each for each in self.table if not each.answers]
        text = f"{len(self.table)}, {len(silent)} of them silent"
        most = () if self.most is None else (fact("neighbours at most", self.most, _LIMIT),)
        rows = (fact(each.address, f"silent on {each.interface}", "/proc/net/arp") for each in silent[:8])
        return (fact("neighbours", text, "/proc/net/arp"), *most, *rows)


def look(place: Place) -> Neighbours:
    """Read the table; nobody is asked anything."""
    lines = proc.text(place.path("/proc/net/arp"))
    if isinstance(lines, Unknown):
        return Neighbours(table=lines)
    rows = (line.split() for line in lines.splitlines()[1:])
    most = proc.number(place.path(_LIMIT))
    return Neighbours(
        table=tuple(Neighbour(row[0], row[-1], bool(int(row[2], 16) & _COMPLETE)) for row in rows if len(row) >= 6),
        most=most if isinstance(most, int) else None,
        needed=_needed(place),
    )


def _needed(place: Place) -> str | None:
    if place.endpoint is not None and is_address(place.endpoint[0]):
        way = towards(place, *place.endpoint)
        return None if way.local or way.refused else way.gateway or way.address
    rows = table(place)
    default = () if isinstance(rows, Unknown) else [row for row in rows if row.destination == "0.0.0.0/0"]
    return min(default, key=lambda row: row.metric).gateway if default else None
