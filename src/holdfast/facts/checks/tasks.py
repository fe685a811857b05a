"""How many more processes and threads may be started: the control group's limit, and the kernel's."""

from __future__ import annotations

from holdfast.facts import cgroups, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

_MOST = ("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max")


class Tasks(Seen, frozen=True, kw_only=True):
    """Processes and threads together. ``limit`` and ``used`` are the control group's, None where it has no limit."""

    running: int | Unknown
    most: int | Unknown
    limit: int | None = None
    used: int | None = None
    origin: str = ""

    @property
    def room(self) -> int | None:
        """How many more there can be."""
        rooms = [self.most - self.running] if isinstance(self.most, int) and isinstance(self.running, int) else []
        rooms += [self.limit - self.used] if self.limit is not None and self.used is not None else []
        return min(rooms) if rooms else None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.running, Unknown) or isinstance(self.most, Unknown):
            why = self.running if isinstance(self.running, Unknown) else self.most
            return (fact("processes and threads", why, "/proc"),)
        told = (fact("processes and threads", f"{self.running}, at most {self.most}", f"/proc/loadavg, {_MOST[0]}"),)
        if self.limit is None:
            return told
        return (*told, fact("limit of the control group", f"{self.limit}, {self.used} in use", self.origin))


def look(place: Place) -> Tasks:
    """Read /proc and the control groups, from this process's own up to the top."""
    loads = proc.text(place.path("/proc/loadavg"))  # 0.10 0.09 0.05 2/345 6789
    most = [proc.number(place.path(path)) for path in _MOST]
    known = [count for count in most if isinstance(count, int)]
    group = cgroups.of("self", "pids", place.path("/proc"), place.path("/sys/fs/cgroup"))
    tightest = min(_limits(group), default=None)
    return Tasks(
        running=loads if isinstance(loads, Unknown) else int(loads.split()[3].partition("/")[2]),
        most=min(known) if known else most[0],
        limit=tightest[1] if tightest else None,
        used=tightest[2] if tightest else None,
        origin=tightest[3] if tightest else "",
    )


def _limits(group: cgroups.Cgroup | Unknown) -> list[tuple[int, int, int, str]]:
    """Room, limit, use and file of each group around this process that has a limit."""
    found = []
    for each in () if isinstance(group, Unknown) else group.upwards():
        limit, used = proc.number(each.folder / "pids.max"), proc.number(each.folder / "pids.current")
        if isinstance(limit, int) and isinstance(used, int):
            found.append((limit - used, limit, used, str(each.folder / "pids.max")))
    return found
