"""Control groups, version 1 and 2: what a process may use, and how often the kernel killed for want of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

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

    def upwards(self) -> Iterator[Path]:
        """The folder, its parent, and so on to the top of the hierarchy."""
        folder = self.folder
        while True:
            yield folder
            if folder == self.top or self.top not in folder.parents:
                return
            folder = folder.parent


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


def memory_limit_bytes(group: Cgroup) -> int | Unknown:
    """The tightest limit over the group and all groups around it; Unknown where there is none."""
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limits = [proc.number(folder / name) for folder in group.upwards()]  # "max" is no number
    found = [limit for limit in limits if isinstance(limit, int) and limit < _NO_LIMIT_BYTES]
    return min(found) if found else Unknown(f"no limit in {group.folder}/{name}")


def memory_used_bytes(group: Cgroup) -> int | Unknown:
    """What the group uses now, page cache included."""
    return proc.number(group.folder / ("memory.current" if group.version == 2 else "memory.usage_in_bytes"))


def kills(group: Cgroup) -> int | Unknown:
    """How many processes of the group the out-of-memory killer has ended so far."""
    path = group.folder / ("memory.events" if group.version == 2 else "memory.oom_control")
    counters = proc.fields(path)
    if isinstance(counters, Unknown):
        return counters
    count = counters.get("oom_kill", "")
    return int(count) if count.isdigit() else Unknown(f"{path} does not count kills")


def cpu_limit(group: Cgroup) -> float | Unknown:
    """Cores that the group may use, from its quota."""
    if group.version == 2:
        content = proc.text(group.folder / "cpu.max")
    else:
        parts = [proc.number(group.folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        content = " ".join(str(part) for part in parts if isinstance(part, int))
    words = content.split() if isinstance(content, str) else []
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return Unknown(f"no CPU quota in {group.folder}")
