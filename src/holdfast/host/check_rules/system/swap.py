"""Judges swap use and memory pressure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.memory.host_swapping import HOST_SWAPPING
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.swap import SwapResult

_HIGH_SWAP_BYTES = 1 << 30
#: Share of the last minute in which some process waited for memory.
_STALL_SHARE = 0.05


def judge(result: SwapResult, _context: CheckContext) -> Iterator[Finding]:
    """Unused swap is no fault."""
    cause = HOST_SWAPPING
    if result.stalled is not None and result.stalled > _STALL_SHARE:
        yield make_finding(
            cause,
            f"processes waited for memory during {result.stalled:.0%} of the last minute: ranks on "
            "this host would be late in every step",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.8,
        )
    elif isinstance(result.used, int) and result.used > _HIGH_SWAP_BYTES:
        yield make_finding(
            cause,
            f"{result.used / 2**30:.1f} GiB of this host's memory are swapped out: a rank that "
            "accesses them waits for the disk",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
        )
