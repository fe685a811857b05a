"""CPUs that this process may use (affinity, cgroup quota), and their load."""

from __future__ import annotations

import re

from holdfast.core.findings import Fact, Unknown
from holdfast.host import cgroups
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

#: Linux supports at most 8,192 CPUs.
_CPU_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_ONLINE = "/sys/devices/system/cpu/online"
_GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


class ProcessorsResult(CheckResult, frozen=True, kw_only=True):
    """``online`` and ``usable`` are CPU lists in the kernel's format (``0-3,8``).

    ``quota`` in cores, None for none. ``throttled``: share of quota periods in which the cgroup
    was throttled. ``load``: 1-minute load average.
    """

    online: str | Unknown
    usable: str | Unknown
    quota: float | None = None
    throttled: float | None = None
    load: float | None = None
    governor: str = ""

    @property
    def cores(self) -> float | None:
        """Number of cores that the workers of this host share."""
        counts = [
            float(len(parse_cpu_list(text)))
            for text in (self.usable, self.online)
            if isinstance(text, str)
        ]
        counts += [self.quota] if self.quota is not None else []
        return min(counts) if counts else None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.online, Unknown) or isinstance(self.usable, Unknown):
            return (check_fact("CPUs", self.usable, "/proc/self/status"),)
        online, usable = len(parse_cpu_list(self.online)), len(parse_cpu_list(self.usable))
        text = f"{online} online, {usable} usable by this process ({self.usable})"
        facts = [check_fact("CPUs", text, f"{_ONLINE}, /proc/self/status")]
        facts += (
            []
            if self.quota is None
            else [check_fact("CPU quota", f"{self.quota:g} cores", "cgroup")]
        )
        facts += (
            []
            if not self.throttled
            else [
                check_fact("throttled by the quota", f"{self.throttled:.0%} of periods", "cpu.stat")
            ]
        )
        facts += (
            []
            if self.load is None
            else [check_fact("load average", f"{self.load:g}", "/proc/loadavg")]
        )
        return (
            *facts,
            *((check_fact("governor", self.governor, _GOVERNOR),) if self.governor else ()),
        )


def parse_cpu_list(text: str) -> list[int]:
    """Return the numbers of a CPU list (``0-3,8``); invalid parts are skipped."""
    ranges = (_CPU_RANGE.fullmatch(part.strip()) for part in text.split(","))
    return [
        number
        for match in ranges
        if match
        for number in range(int(match[1]), int(match[2] or match[1]) + 1)
    ]


def inspect(context: CheckContext) -> ProcessorsResult:
    """Read /proc, /sys and the cgroup's files."""
    status = proc.read_fields(context.path("/proc/self/status"))
    online, governor = (
        proc.read_text(context.path(_ONLINE)),
        proc.read_text(context.path(_GOVERNOR)),
    )
    loads = proc.read_text(context.path("/proc/loadavg"))
    group = cgroups.cgroup_of("self", "cpu", context.path("/proc"), context.path("/sys/fs/cgroup"))
    quota = group if isinstance(group, Unknown) else cgroups.cpu_limit(group)
    usable = status if isinstance(status, Unknown) else status.get("Cpus_allowed_list", "")
    return ProcessorsResult(
        online=_checked_list(_ONLINE, online),
        usable=_checked_list("Cpus_allowed_list of /proc/self/status", usable),
        quota=quota if isinstance(quota, float) else None,
        throttled=None if isinstance(group, Unknown) else cgroups.cpu_throttled(group),
        load=float(loads.split()[0]) if isinstance(loads, str) else None,
        governor=governor.strip() if isinstance(governor, str) else "",
    )


def _checked_list(origin: str, text: str | Unknown) -> str | Unknown:
    if isinstance(text, Unknown):
        return text
    return text.strip() if parse_cpu_list(text) else Unknown(f"{origin} is not a CPU list")
