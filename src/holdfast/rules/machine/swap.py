"""Does the host wait for memory that it has put on a disk?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.swap import Swap
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name

_MUCH_BYTES = 1 << 30
#: Share of a minute in which somebody waited for memory.
_WAITS = 0.05


def judge(seen: Swap, _place: Place) -> Iterator[Finding]:
    """Swap that is there and empty is no fault."""
    cause = by_name("host-swapping")
    if seen.waiting is not None and seen.waiting > _WAITS:
        yield finding(
            cause,
            f"processes waited for memory during {seen.waiting:.0%} of the last minute: a rank here "
            "would be late in every step",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.8,
        )
    elif isinstance(seen.used, int) and seen.used > _MUCH_BYTES:
        yield finding(
            cause,
            f"{seen.used / 2**30:.1f} GiB of this host's memory are in swap: a rank that needs them waits for the disk",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.6,
        )
