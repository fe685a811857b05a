"""Is the clock right, and quick to read?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.clock import Clock
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name

_FAR_S = 1.0
#: Sources for which each look at the clock is a system call and a slow read of a device (Linux: Documentation/
#: timers/timekeeping.rst; the vDSO knows the others). Reading them costs 1 to 5 us instead of 0.02.
_SLOW = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies"})


def judge(seen: Clock, _place: Place) -> Iterator[Finding]:
    """A clock that nobody keeps right is a note: how far hosts are apart is for the comparison of hosts to say."""
    wrong = by_name("clock-unsynchronized")
    if seen.offset_s is not None and abs(seen.offset_s) > _FAR_S:
        yield finding(
            wrong,
            f"this host's clock is {abs(seen.offset_s):.1f} s off {seen.server}: times in its logs do not "
            "fit those of other hosts",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.9,
        )
    elif seen.synchronized is False:
        yield finding(
            wrong,
            "nobody keeps this host's clock right, as far as the kernel knows: it drifts by seconds a "
            "week, and logs of several hosts do not fit together",
            level=Level.NOTE,
            evidence=seen.facts(),
            confidence=0.6,
        )
    if isinstance(seen.hardware, str) and seen.hardware in _SLOW:
        yield finding(
            by_name("clock-source-slow"),
            f"the kernel reads the time from {seen.hardware}, which costs "
            "microseconds each time: programs that measure themselves, torch among them, are slowed",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.8,
        )
