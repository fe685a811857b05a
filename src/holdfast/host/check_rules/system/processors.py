"""Judges whether there are enough free CPUs for the workers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.performance.processors_too_few import PROCESSORS_TOO_FEW
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.processors import ProcessorsResult, parse_cpu_list

#: Share of throttled quota periods that is reported.
_THROTTLED_SHARE = 0.1
#: Load average per core from which other programs must be computing on this host.
_BUSY_LOAD = 0.75


def judge(result: ProcessorsResult, context: CheckContext) -> Iterator[Finding]:
    """Warn about fewer cores than workers, a throttling quota, and a busy host."""
    cores, workers = result.cores, context.workers
    if cores is None or isinstance(result.online, Unknown) or isinstance(result.usable, Unknown):
        return
    online, usable = len(parse_cpu_list(result.online)), len(parse_cpu_list(result.usable))
    if workers is not None and workers > cores:
        limit = f"a quota of {cores:g} cores" if result.quota == cores else f"{cores:g} CPUs"
        yield _cpu_finding(
            result,
            Level.WARNING,
            f"{workers} workers share {limit}: they slow each other down",
            0.8,
        )
    elif usable < online:
        yield _cpu_finding(
            result,
            Level.NOTE,
            f"CPU affinity limits this process and its children to {usable} of {online} CPUs "
            f"({result.usable})",
            0.6,
        )
    if result.throttled is not None and result.throttled > _THROTTLED_SHARE:
        yield _cpu_finding(
            result,
            Level.WARNING,
            f"the cgroup's CPU quota throttled it in {result.throttled:.0%} of periods so far: "
            "ranks pause for up to 100 ms at a time",
            0.7,
        )
    if result.load is not None and result.load > _BUSY_LOAD * online and result.load > 1.5:
        yield _cpu_finding(
            result,
            Level.WARNING if result.load > 1.5 * online else Level.NOTE,
            f"load average {result.load:g} on {online} cores; the host is already busy",
            0.6,
        )
    if result.governor == "powersave":
        yield _cpu_finding(
            result,
            Level.NOTE,
            "the CPU frequency governor is powersave: clocks may rise slowly under load",
            0.3,
        )


def _cpu_finding(
    result: ProcessorsResult, level: Level, message: str, confidence: float
) -> Finding:
    return make_finding(
        PROCESSORS_TOO_FEW, message, level=level, evidence=result.facts(), confidence=confidence
    )
