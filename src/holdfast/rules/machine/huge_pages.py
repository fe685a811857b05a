"""Are huge pages a help here?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.huge_pages import HugePages
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name

#: Share of the host's memory that lies idle as huge pages.
_MUCH = 0.1


def judge(seen: HugePages, _place: Place) -> Iterator[Finding]:
    """Idle ones are a warning, as they are missing elsewhere; how the kernel makes them is worth a note."""
    cause = by_name("huge-pages-unsuited")
    if isinstance(seen.idle, int) and isinstance(seen.total, int) and seen.idle > _MUCH * seen.total:
        message = f"{seen.idle / 2**30:.1f} GiB of memory are set aside as huge pages that nobody uses"
        yield finding(cause, message, level=Level.WARNING, evidence=seen.facts(), confidence=0.7)
    if seen.enabled == "always" and seen.defrag == "always":
        message = "the kernel stalls any program that allocates memory until it has a huge page for it (THP always)"
        yield finding(cause, message, level=Level.NOTE, evidence=seen.facts(), confidence=0.4)
