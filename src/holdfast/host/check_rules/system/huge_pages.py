"""Judges reserved huge pages and the THP mode."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.memory.huge_pages_unsuited import HUGE_PAGES_UNSUITED
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.huge_pages import HugePagesResult

#: Share of the host's memory in unused huge pages.
_LARGE_SHARE = 0.1


def judge(result: HugePagesResult, _context: CheckContext) -> Iterator[Finding]:
    """Unused huge pages are a warning, as that memory is unavailable elsewhere.

    The THP mode is a note.
    """
    cause, idle, total = HUGE_PAGES_UNSUITED, result.idle, result.total
    if isinstance(idle, int) and isinstance(total, int) and idle > _LARGE_SHARE * total:
        message = f"{idle / 2**30:.1f} GiB of memory are reserved as huge pages and unused"
        yield make_finding(
            cause, message, level=Level.WARNING, evidence=result.facts(), confidence=0.7
        )
    if result.enabled == "always" and result.defrag == "always":
        message = (
            "transparent huge pages: enabled and defrag are both `always`, so that memory "
            "allocations stall while the kernel compacts memory"
        )
        yield make_finding(
            cause, message, level=Level.NOTE, evidence=result.facts(), confidence=0.4
        )
