"""Does the next host answer, and is there room in the kernel's table for all of them?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.neighbours import Neighbours
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name

#: From here on the kernel throws rows away, and new neighbours are asked for again and again.
_FULL = 0.8


def judge(seen: Neighbours, _place: Place) -> Iterator[Finding]:
    """A warning where the host that is needed is silent, or the table is nearly full."""
    if isinstance(seen.table, Unknown):
        return
    rows = [each for each in seen.table if each.address == seen.needed]
    if rows and not any(each.answers for each in rows):
        yield finding(
            by_name("master-unreachable"),
            f"{seen.needed}, which the way to the other hosts needs, does not answer on {rows[0].interface}: nobody "
            "has that address there, or the link is down",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.6,
            remedies=(
                Remedy(
                    text="Ask for it once more.",
                    command=f"ip neigh show {seen.needed}; ping -c 3 {seen.needed}",
                    safety=Safety.AUTOMATIC,
                ),
                *by_name("master-unreachable").remedies,
            ),
        )
    if seen.most and len(seen.table) > _FULL * seen.most:
        yield finding(
            by_name("network-fabric-fault"),
            f"the kernel knows {len(seen.table)} neighbours and keeps {seen.most} at most: with more hosts connections "
            "fail and come back",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.7,
            remedies=(
                Remedy(
                    text="Make the table larger, on every host.",
                    command="sysctl -w net.ipv4.neigh.default.gc_thresh3=16384 net.ipv4.neigh.default.gc_thresh2=8192",
                ),
            ),
        )
