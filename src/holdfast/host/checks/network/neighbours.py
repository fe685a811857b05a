"""The kernel's neighbour (ARP) table: which hosts answer, and how full the table is."""

from __future__ import annotations

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network.resolver import is_address
from holdfast.host.checks.network.routes import lookup_route, read_route_table
from holdfast.host.processes import proc

_COMPLETE = 0x2  # ATF_COM of <linux/if_arp.h>
_LIMIT = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"


class Neighbour(msgspec.Struct, frozen=True):
    """A row of the table. ``answers``: a host with this address has replied to ARP."""

    address: str
    interface: str
    answers: bool


class NeighboursResult(CheckResult, frozen=True, kw_only=True):
    """The IPv4 table, its maximum size, and the address on the local network that a job requires.

    ``required``: the gateway on the route to the endpoint, the endpoint itself, or the default
    gateway.
    """

    table: tuple[Neighbour, ...] | Unknown
    maximum: int | None = None
    required: str | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.table, Unknown):
            return (check_fact("neighbours", self.table, "/proc/net/arp"),)
        silent = [row for row in self.table if not row.answers]
        text = f"{len(self.table)}, {len(silent)} without an answer"
        facts = [check_fact("neighbours", text, "/proc/net/arp")]
        if self.maximum is not None:
            facts.append(check_fact("maximum neighbours", self.maximum, _LIMIT))
        facts += [
            check_fact(row.address, f"no answer on {row.interface}", "/proc/net/arp")
            for row in silent[:8]
        ]
        return tuple(facts)


def inspect(context: CheckContext) -> NeighboursResult:
    """Read the table; no packet is sent."""
    lines = proc.read_text(context.path("/proc/net/arp"))
    if isinstance(lines, Unknown):
        return NeighboursResult(table=lines)
    rows = (line.split() for line in lines.splitlines()[1:])
    maximum = proc.read_number(context.path(_LIMIT))
    return NeighboursResult(
        table=tuple(
            Neighbour(row[0], row[-1], bool(int(row[2], 16) & _COMPLETE))
            for row in rows
            if len(row) >= 6
        ),
        maximum=maximum if isinstance(maximum, int) else None,
        required=_required_address(context),
    )


def _required_address(context: CheckContext) -> str | None:
    if context.endpoint is not None and is_address(context.endpoint[0]):
        route = lookup_route(context, *context.endpoint)
        return None if route.local or route.refused else route.gateway or route.address
    rows = read_route_table(context)
    default = (
        () if isinstance(rows, Unknown) else [row for row in rows if row.destination == "0.0.0.0/0"]
    )
    return min(default, key=lambda row: row.metric).gateway if default else None
