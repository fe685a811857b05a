"""Judges clock synchronization and the cost of the clock source."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.clock_unsynchronized import CLOCK_UNSYNCHRONIZED
from holdfast.causes.performance.clock_source_slow import CLOCK_SOURCE_SLOW
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.clock import ClockResult

_MAX_OFFSET_S = 1.0
#: Clock sources for which each read is a system call and a slow device access (Linux:
#: Documentation/ timers/timekeeping.rst; the vDSO supports the others): 1 to 5 us instead of 0.02.
_SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies"})


def judge(result: ClockResult, _context: CheckContext) -> Iterator[Finding]:
    """An unsynchronized clock is a note: offsets between hosts are judged elsewhere."""
    if result.offset_s is not None and abs(result.offset_s) > _MAX_OFFSET_S:
        yield make_finding(
            CLOCK_UNSYNCHRONIZED,
            f"the clock is {abs(result.offset_s):.1f} s off {result.server}: timestamps in this "
            "host's logs do not match those of other hosts",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.9,
        )
    elif result.synchronized is False:
        yield make_finding(
            CLOCK_UNSYNCHRONIZED,
            "not synchronized (no NTP); expect seconds of drift per week, so that timestamps of "
            "several hosts do not match",
            level=Level.NOTE,
            evidence=result.facts(),
            confidence=0.6,
        )
    if isinstance(result.source, str) and result.source in _SLOW_SOURCES:
        yield make_finding(
            CLOCK_SOURCE_SLOW,
            f"slow clock source {result.source}: each read costs microseconds, which slows "
            "programs that take timestamps, including torch",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.8,
        )
