"""Judges whether the next hop answers, and whether the neighbour table is nearly full."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.neighbours import NeighboursResult

#: Near its maximum the kernel drops rows, and repeats ARP requests for the same neighbours.
_FULL_SHARE = 0.8


def judge(result: NeighboursResult, _context: CheckContext) -> Iterator[Finding]:
    """Warn if the required host does not answer, or the table is nearly full."""
    if isinstance(result.table, Unknown):
        return
    address = result.required
    rows = [row for row in result.table if row.address == address]
    if rows and not any(row.answers for row in rows):
        yield make_finding(
            MASTER_UNREACHABLE,
            f"{address}, the next hop to the other hosts, does not answer ARP on "
            f"{rows[0].interface}: wrong address, or the link is down",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
            remedies=(
                automatic("Query it again.", f"ip neigh show {address}; ping -c 3 {address}"),
                *MASTER_UNREACHABLE.remedies,
            ),
        )
    if result.maximum and len(result.table) > _FULL_SHARE * result.maximum:
        yield make_finding(
            NETWORK_FABRIC_FAULT,
            f"the neighbour table has {len(result.table)} of at most {result.maximum} entries: "
            "with more hosts, connections fail intermittently",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.7,
            remedies=(
                by_hand(
                    "Raise the limits of the table on every host.",
                    "sysctl -w net.ipv4.neigh.default.gc_thresh3=16384 "
                    "net.ipv4.neigh.default.gc_thresh2=8192",
                ),
            ),
        )
