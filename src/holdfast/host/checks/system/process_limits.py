"""Limits on processes and threads: the cgroup's and the kernel's."""

from __future__ import annotations

from holdfast.core.findings import Fact, Unknown
from holdfast.host import cgroups
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

_KERNEL_LIMITS = ("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max")


class ProcessLimitsResult(CheckResult, frozen=True, kw_only=True):
    """Counts of processes and threads together; ``limit`` and ``used`` are the cgroup's.

    ``limit`` and ``used`` are None without a cgroup limit.
    """

    running: int | Unknown
    maximum: int | Unknown
    limit: int | None = None
    used: int | None = None
    origin: str = ""

    @property
    def remaining(self) -> int | None:
        """How many more can be started."""
        counts = []
        if isinstance(self.maximum, int) and isinstance(self.running, int):
            counts.append(self.maximum - self.running)
        if self.limit is not None and self.used is not None:
            counts.append(self.limit - self.used)
        return min(counts) if counts else None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.running, Unknown) or isinstance(self.maximum, Unknown):
            why = self.running if isinstance(self.running, Unknown) else self.maximum
            return (check_fact("processes and threads", why, "/proc"),)
        facts = (
            check_fact(
                "processes and threads",
                f"{self.running} (maximum {self.maximum})",
                f"/proc/loadavg, {_KERNEL_LIMITS[0]}",
            ),
        )
        if self.limit is None:
            return facts
        return (
            *facts,
            check_fact("cgroup limit (pids.max)", f"{self.limit}, {self.used} in use", self.origin),
        )


def inspect(context: CheckContext) -> ProcessLimitsResult:
    """Read /proc and the cgroups, from that of this process up to the root."""
    loads = proc.read_text(context.path("/proc/loadavg"))  # 0.10 0.09 0.05 2/345 6789
    maxima = [proc.read_number(context.path(path)) for path in _KERNEL_LIMITS]
    readable = [count for count in maxima if isinstance(count, int)]
    group = cgroups.cgroup_of("self", "pids", context.path("/proc"), context.path("/sys/fs/cgroup"))
    tightest = min(_group_limits(group), default=None)
    return ProcessLimitsResult(
        running=loads if isinstance(loads, Unknown) else int(loads.split()[3].partition("/")[2]),
        maximum=min(readable) if readable else maxima[0],
        limit=tightest[1] if tightest else None,
        used=tightest[2] if tightest else None,
        origin=tightest[3] if tightest else "",
    )


def _group_limits(group: cgroups.Cgroup | Unknown) -> list[tuple[int, int, int, str]]:
    """Return remaining count, limit, use and file of each enclosing cgroup that has a limit."""
    limits = []
    for cgroup in () if isinstance(group, Unknown) else group.upwards():
        limit, used = (
            proc.read_number(cgroup.folder / "pids.max"),
            proc.read_number(cgroup.folder / "pids.current"),
        )
        if isinstance(limit, int) and isinstance(used, int):
            limits.append((limit - used, limit, used, str(cgroup.folder / "pids.max")))
    return limits
