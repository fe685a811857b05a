"""Swap: how much there is, how much is in use, and whether pages are moving now."""

from __future__ import annotations

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.memory import meminfo, of
from holdfast.findings import Fact, Unknown

_PRESSURE = "/proc/pressure/memory"


class Swap(Seen, frozen=True, kw_only=True):
    """In bytes. ``waiting``: share of the last minute in which some process waited for memory; None if not counted."""

    size: int | Unknown
    used: int | Unknown
    swappiness: int | None = None
    waiting: float | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.size, Unknown) or isinstance(self.used, Unknown):
            return (fact("swap", self.size, "/proc/meminfo"),)
        text = f"{self.size >> 20:,} MiB, {self.used >> 20:,} MiB in use" if self.size else "none"
        told = [fact("swap", text, "/proc/meminfo")]
        told += [] if self.swappiness is None else [fact("swappiness", self.swappiness, "/proc/sys/vm/swappiness")]
        waiting = None if self.waiting is None else f"{self.waiting:.1%} of the last minute"
        return (*told, *((fact("waited for memory", waiting, _PRESSURE),) if waiting else ()))


def look(place: Place) -> Swap:
    """Read /proc."""
    known = meminfo(place)
    size, free = of(known, "SwapTotal"), of(known, "SwapFree")
    swappiness = proc.number(place.path("/proc/sys/vm/swappiness"))
    return Swap(
        size=size,
        used=free if isinstance(free, Unknown) else size if isinstance(size, Unknown) else size - free,
        swappiness=swappiness if isinstance(swappiness, int) else None,
        waiting=_waiting(proc.text(place.path(_PRESSURE))),
    )


def _waiting(content: str | Unknown) -> float | None:
    """``some avg10=0.00 avg60=1.50 …``: per cent."""
    words = [] if isinstance(content, Unknown) else content.partition("\n")[0].split()
    found = [word.partition("=")[2] for word in words if word.startswith("avg60=")]
    return float(found[0]) / 100 if found else None
