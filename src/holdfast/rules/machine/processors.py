"""Are there processors for the workers?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.processors import Processors, numbers
from holdfast.findings import Finding, Level, Unknown, finding
from holdfast.rules.causes import by_name

#: The group was held back in more than this share of the quota's periods.
_HELD_BACK = 0.1
#: Load per processor from which others must be computing here.
_BUSY = 0.75


def judge(seen: Processors, place: Place) -> Iterator[Finding]:
    """Fewer than workers is a warning; so is a quota that holds back, or a host that computes already."""
    cores, workers = seen.cores, place.workers
    if cores is None or isinstance(seen.online, Unknown) or isinstance(seen.usable, Unknown):
        return
    online, usable = len(numbers(seen.online)), len(numbers(seen.usable))
    if workers is not None and workers > cores:
        why = f"a quota of {cores:g} cores" if seen.quota == cores else f"{cores:g} processors"
        yield _claim(
            seen, Level.WARNING, f"{workers} workers will share {why}: each waits for the others to compute", 0.8
        )
    elif usable < online:
        yield _claim(
            seen,
            Level.NOTE,
            f"this process, and what it starts, may use {usable} of the host's {online} processors ({seen.usable})",
            0.6,
        )
    if seen.throttled is not None and seen.throttled > _HELD_BACK:
        yield _claim(
            seen,
            Level.WARNING,
            f"the control group's quota held it back in {seen.throttled:.0%} of its periods "
            "so far: ranks stand still for up to 100 ms at a time",
            0.7,
        )
    if seen.load is not None and seen.load > _BUSY * online and seen.load > 1.5:
        yield _claim(
            seen,
            Level.WARNING if seen.load > 1.5 * online else Level.NOTE,
            f"the load is {seen.load:g} on {online} processors: others compute here already",
            0.6,
        )
    if seen.governor == "powersave":
        yield _claim(
            seen,
            Level.NOTE,
            "the processors run under the governor powersave: they may be slow to raise their clocks",
            0.3,
        )


def _claim(seen: Processors, level: Level, message: str, confidence: float) -> Finding:
    cause = by_name("processors-too-few")
    return finding(cause, message, level=level, evidence=seen.facts(), confidence=confidence)
