"""Processors: how many this process may use, by affinity and quota, and who uses them now."""

from __future__ import annotations

import re

from holdfast.facts import cgroups, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

#: Linux knows 8,192 processors at most.
_SPAN = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_ONLINE = "/sys/devices/system/cpu/online"
_GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


class Processors(Seen, frozen=True, kw_only=True):
    """``usable`` are numbers of processors as the kernel writes them (``0-3,8``). ``quota`` in cores, None for none.

    ``throttled``: share of the quota's periods in which the group was held back. ``load``: over the last minute.
    """

    online: str | Unknown
    usable: str | Unknown
    quota: float | None = None
    throttled: float | None = None
    load: float | None = None
    governor: str = ""

    @property
    def cores(self) -> float | None:
        """What the workers of this host share."""
        counted = [float(len(numbers(text))) for text in (self.usable, self.online) if isinstance(text, str)]
        counted += [self.quota] if self.quota is not None else []
        return min(counted) if counted else None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.online, Unknown) or isinstance(self.usable, Unknown):
            return (fact("processors", self.usable, "/proc/self/status"),)
        text = f"{len(numbers(self.online))} in the host, {len(numbers(self.usable))} for this process ({self.usable})"
        told = [fact("processors", text, f"{_ONLINE}, /proc/self/status")]
        told += [] if self.quota is None else [fact("quota", f"{self.quota:g} cores", "cgroup")]
        told += (
            []
            if not self.throttled
            else [fact("held back by the quota", f"{self.throttled:.0%} of periods", "cpu.stat")]
        )
        told += [] if self.load is None else [fact("load", f"{self.load:g}", "/proc/loadavg")]
        return (*told, *((fact("governor", self.governor, _GOVERNOR),) if self.governor else ()))


def numbers(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it; what is no part of one is left out."""
    spans = (_SPAN.fullmatch(part.strip()) for part in text.split(","))
    return [number for span in spans if span for number in range(int(span[1]), int(span[2] or span[1]) + 1)]


def look(place: Place) -> Processors:
    """Read /proc, /sys and the control group's files."""
    status = proc.fields(place.path("/proc/self/status"))
    online, governor = proc.text(place.path(_ONLINE)), proc.text(place.path(_GOVERNOR))
    loads = proc.text(place.path("/proc/loadavg"))
    group = cgroups.of("self", "cpu", place.path("/proc"), place.path("/sys/fs/cgroup"))
    quota = group if isinstance(group, Unknown) else cgroups.cpu_limit(group)
    usable = status if isinstance(status, Unknown) else status.get("Cpus_allowed_list", "")
    return Processors(
        online=_list(_ONLINE, online),
        usable=_list("Cpus_allowed_list of /proc/self/status", usable),
        quota=quota if isinstance(quota, float) else None,
        throttled=None if isinstance(group, Unknown) else cgroups.cpu_throttled(group),
        load=float(loads.split()[0]) if isinstance(loads, str) else None,
        governor=governor.strip() if isinstance(governor, str) else "",
    )


def _list(origin: str, text: str | Unknown) -> str | Unknown:
    if isinstance(text, Unknown):
        return text
    return text.strip() if numbers(text) else Unknown(f"{origin} is no list of processors")
