"""Swap: size, use, and current memory pressure."""

from __future__ import annotations

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.system.memory import meminfo_bytes, read_meminfo
from holdfast.host.processes import proc

_PRESSURE = "/proc/pressure/memory"


class SwapResult(CheckResult, frozen=True, kw_only=True):
    """Sizes in bytes.

    ``stalled``: share of the last minute in which some process waited for memory (PSI); None if not
    counted.
    """

    size: int | Unknown
    used: int | Unknown
    swappiness: int | None = None
    stalled: float | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.size, Unknown) or isinstance(self.used, Unknown):
            return (check_fact("swap", self.size, "/proc/meminfo"),)
        text = f"{self.size >> 20:,} MiB, {self.used >> 20:,} MiB in use" if self.size else "none"
        facts = [check_fact("swap", text, "/proc/meminfo")]
        facts += (
            []
            if self.swappiness is None
            else [check_fact("swappiness", self.swappiness, "/proc/sys/vm/swappiness")]
        )
        if self.stalled is not None:
            text = f"{self.stalled:.1%} of the last minute"
            facts.append(check_fact("stalled on memory", text, _PRESSURE))
        return tuple(facts)


def inspect(context: CheckContext) -> SwapResult:
    """Read /proc."""
    meminfo = read_meminfo(context)
    size, free = meminfo_bytes(meminfo, "SwapTotal"), meminfo_bytes(meminfo, "SwapFree")
    swappiness = proc.read_number(context.path("/proc/sys/vm/swappiness"))
    return SwapResult(
        size=size,
        used=free
        if isinstance(free, Unknown)
        else size
        if isinstance(size, Unknown)
        else size - free,
        swappiness=swappiness if isinstance(swappiness, int) else None,
        stalled=_memory_stall_share(proc.read_text(context.path(_PRESSURE))),
    )


def _memory_stall_share(content: str | Unknown) -> float | None:
    """Parse ``some avg10=0.00 avg60=1.50 …``, whose values are percentages."""
    words = [] if isinstance(content, Unknown) else content.partition("\n")[0].split()
    averages = [word.partition("=")[2] for word in words if word.startswith("avg60=")]
    return float(averages[0]) / 100 if averages else None
