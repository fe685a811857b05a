"""Cgroups, version 1 and 2: limits of a process, and OOM kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core.findings import Unknown
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

CGROUPS = Path("/sys/fs/cgroup")
#: Version 1 represents "no limit" by the largest number that it can hold, rounded down to a page.
_NO_LIMIT_BYTES = 1 << 60


class Cgroup(msgspec.Struct, frozen=True):
    """The cgroup folder of a process for one controller, and the top of its hierarchy."""

    folder: Path
    top: Path
    version: int

    def upwards(self) -> Iterator[Cgroup]:
        """Yield the group and its parents up to the top: the limits of all of them apply."""
        folder = self.folder
        while True:
            yield replace(self, folder=folder)
            if folder == self.top or self.top not in folder.parents:
                return
            folder = folder.parent


class MemoryLimit(msgspec.Struct, frozen=True):
    """A memory limit, and the use without reclaimable page cache.

    ``folder`` is the cgroup that has the limit.
    """

    folder: Path
    limit_bytes: int
    used_bytes: int | Unknown

    @property
    def available_bytes(self) -> int:
        """Bytes left below the limit; all of it if the use is not known."""
        return max(
            0, self.limit_bytes - (self.used_bytes if isinstance(self.used_bytes, int) else 0)
        )


def cgroup_of(
    pid: int | str, controller: str = "memory", proc_root: Path = PROC, cgroups: Path = CGROUPS
) -> Cgroup | Unknown:
    """Return the cgroup of ``pid`` for ``controller``.

    The top inside a container, whose paths lead outside.
    """
    lines = proc.read_text(proc_root / str(pid) / "cgroup")
    if isinstance(lines, Unknown):
        return lines
    unified = None
    for line in lines.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            mount = next(
                (cgroups / name for name in (controller, names) if (cgroups / name).is_dir()), None
            )
            return (
                _cgroup_at(mount, path, 1)
                if mount
                else Unknown(f"the cgroup controller {controller} is not mounted")
            )
        if number == "0":
            unified = path
    if unified is not None and (cgroups / "cgroup.controllers").exists():
        return _cgroup_at(cgroups, unified, 2)
    return Unknown(f"process {pid} is in no cgroup with the controller {controller}")


def _cgroup_at(top: Path, path: str, version: int) -> Cgroup:
    folder = top / path.lstrip("/") if ".." not in path.split("/") else top
    return Cgroup(folder if folder.is_dir() else top, top, version)


def memory_limit(group: Cgroup) -> MemoryLimit | Unknown:
    """Return the limit with the fewest bytes left, of the group and all its parents.

    Unknown if there is none.
    """
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    values = [(cgroup, proc.read_number(cgroup.folder / name)) for cgroup in group.upwards()]
    limits = [
        MemoryLimit(cgroup.folder, value, _memory_used_bytes(cgroup))
        for cgroup, value in values
        if isinstance(value, int) and value < _NO_LIMIT_BYTES  # "max" is not a number
    ]
    if not limits:
        return Unknown(f"no limit in {group.folder}/{name}")
    return min(limits, key=lambda limit: limit.available_bytes)


def _memory_used_bytes(group: Cgroup) -> int | Unknown:
    """Return the used bytes without the reclaimable part of the page cache."""
    used = proc.read_number(
        group.folder / ("memory.current" if group.version == 2 else "memory.usage_in_bytes")
    )
    counts = proc.read_fields(group.folder / "memory.stat")
    if isinstance(used, Unknown) or isinstance(counts, Unknown):
        return used
    idle = counts.get("inactive_file" if group.version == 2 else "total_inactive_file", "0")
    return max(0, used - int(idle)) if idle.isdigit() else used


def memory_kill_count(group: Cgroup) -> int | Unknown:
    """Return how many processes of the group the OOM killer has ended so far."""
    path = group.folder / ("memory.events" if group.version == 2 else "memory.oom_control")
    counters = proc.read_fields(path)
    if isinstance(counters, Unknown):
        return counters
    count = counters.get("oom_kill", "")
    return int(count) if count.isdigit() else Unknown(f"{path} does not count kills")


def cpu_limit(group: Cgroup) -> float | Unknown:
    """Return the cores that the group may use: the smallest quota of it and its parents."""
    quotas = [quota for cgroup in group.upwards() if (quota := _quota(cgroup)) is not None]
    return min(quotas) if quotas else Unknown(f"no CPU quota in {group.folder} or its parents")


def _quota(group: Cgroup) -> float | None:
    """Return the group's own quota in cores; None if it has none."""
    if group.version == 2:
        content = proc.read_text(group.folder / "cpu.max")
    else:
        parts = [
            proc.read_number(group.folder / name)
            for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        ]
        content = " ".join(str(part) for part in parts if isinstance(part, int))
    words = content.split() if isinstance(content, str) else []
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def cpu_throttled(group: Cgroup) -> float | None:
    """Return the share of quota periods in which it, or a parent, was throttled.

    None if not counted.
    """
    shares = (_throttled_share(cgroup) for cgroup in group.upwards())
    return max((share for share in shares if share is not None), default=None)


def _throttled_share(group: Cgroup) -> float | None:
    counts = proc.read_fields(group.folder / "cpu.stat")
    words = (
        []
        if isinstance(counts, Unknown)
        else [counts.get(name, "") for name in ("nr_periods", "nr_throttled")]
    )
    periods, throttled = (
        (int(word) for word in words) if words and all(word.isdigit() for word in words) else (0, 0)
    )
    return throttled / periods if periods else None
