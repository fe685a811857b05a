"""Control groups, version 1 and 2: what a process may use, and how often the kernel killed for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.facts import proc
from holdfast.facts.proc import PROC
from holdfast.findings import Unknown

CGROUPS = Path("/sys/fs/cgroup")
#: Version 1 says "no limit" with the largest number that it can hold, rounded down to a page.
_NO_LIMIT_BYTES = 1 << 60


class Cgroup(msgspec.Struct, frozen=True):
    """The folder that counts a process's memory (or another ``controller``), and where its hierarchy begins."""

    folder: Path
    top: Path
    version: int

    def upwards(self) -> Iterator[Cgroup]:
        """The group, the one around it, and so on to the top of the hierarchy: the limits of all of them count."""
        folder = self.folder
        while True:
            yield replace(self, folder=folder)
            if folder == self.top or self.top not in folder.parents:
                return
            folder = folder.parent


class MemoryLimit(msgspec.Struct, frozen=True):
    """What a group may use, and uses without page cache that can go. ``folder`` is the group that has the limit."""

    folder: Path
    limit_bytes: int
    used_bytes: int | Unknown

    @property
    def room_bytes(self) -> int:
        """What is left; all of it, where the use is not known."""
        return max(0, self.limit_bytes - (self.used_bytes if isinstance(self.used_bytes, int) else 0))


def of(pid: int | str, controller: str = "memory", proc_root: Path = PROC, cgroups: Path = CGROUPS) -> Cgroup | Unknown:
    """The control group of ``pid`` for ``controller``; in a container, whose paths lead out, its own top."""
    lines = proc.text(proc_root / str(pid) / "cgroup")
    if isinstance(lines, Unknown):
        return lines
    unified = None
    for line in lines.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            mount = next((cgroups / name for name in (controller, names) if (cgroups / name).is_dir()), None)
            return _at(mount, path, 1) if mount else Unknown(f"the cgroup controller {controller} is not mounted")
        if number == "0":
            unified = path
    if unified is not None and (cgroups / "cgroup.controllers").exists():
        return _at(cgroups, unified, 2)
    return Unknown(f"process {pid} is in no control group that counts {controller}")


def _at(top: Path, path: str, version: int) -> Cgroup:
    folder = top / path.lstrip("/") if ".." not in path.split("/") else top
    return Cgroup(folder if folder.is_dir() else top, top, version)


def memory_limit(group: Cgroup) -> MemoryLimit | Unknown:
    """The limit with the least room under it, over the group and all groups around it; Unknown where there is none."""
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limits = [(each, proc.number(each.folder / name)) for each in group.upwards()]  # "max" is no number
    found = [
        MemoryLimit(each.folder, limit, _memory_used_bytes(each))
        for each, limit in limits
        if isinstance(limit, int) and limit < _NO_LIMIT_BYTES
    ]
    return min(found, key=lambda each: each.room_bytes) if found else Unknown(f"no limit in {group.folder}/{name}")


def _memory_used_bytes(group: Cgroup) -> int | Unknown:
    """Without the part of the page cache that the kernel gives back when it is wanted."""
    used = proc.number(group.folder / ("memory.current" if group.version == 2 else "memory.usage_in_bytes"))
    counts = proc.fields(group.folder / "memory.stat")
    if isinstance(used, Unknown) or isinstance(counts, Unknown):
        return used
    idle = counts.get("inactive_file" if group.version == 2 else "total_inactive_file", "0")
    return max(0, used - int(idle)) if idle.isdigit() else used


def kills(group: Cgroup) -> int | Unknown:
    """How many processes of the group the out-of-memory killer has ended so far."""
    path = group.folder / ("memory.events" if group.version == 2 else "memory.oom_control")
    counters = proc.fields(path)
    if isinstance(counters, Unknown):
        return counters
    count = counters.get("oom_kill", "")
    return int(count) if count.isdigit() else Unknown(f"{path} does not count kills")


def cpu_limit(group: Cgroup) -> float | Unknown:
    """Cores that the group may use: the tightest quota over it and all groups around it."""
    quotas = [quota for each in group.upwards() if (quota := _quota(each)) is not None]
    return min(quotas) if quotas else Unknown(f"no CPU quota in {group.folder} nor around it")


def _quota(group: Cgroup) -> float | None:
    """The group's own quota in cores; None where it has none."""
    if group.version == 2:
        content = proc.text(group.folder / "cpu.max")
    else:
        parts = [proc.number(group.folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        content = " ".join(str(part) for part in parts if isinstance(part, int))
    words = content.split() if isinstance(content, str) else []
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def cpu_throttled(group: Cgroup) -> float | None:
    """Share of its quota's periods in which it, or a group around it, was held back; None where nothing is counted."""
    return max((share for each in group.upwards() if (share := _held_back(each)) is not None), default=None)


def _held_back(group: Cgroup) -> float | None:
    counts = proc.fields(group.folder / "cpu.stat")
    words = [] if isinstance(counts, Unknown) else [counts.get(name, "") for name in ("nr_periods", "nr_throttled")]
    periods, held = (int(word) for word in words) if words and all(word.isdigit() for word in words) else (0, 0)
    return held / periods if periods else None
