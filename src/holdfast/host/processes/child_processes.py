"""Child processes of a process (mostly data-loader workers): alive, zombies, or reaped."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ChildProcess, ProcessState
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC, TICKS_PER_S, ProcessStat

MAX_CHILDREN = 1024
_NAME_LENGTH = 120


def list_children(pid: int, proc_root: Path = PROC) -> tuple[ChildProcess, ...]:
    """Return all living or unreaped descendants of ``pid``, nearest first.

    Empty if it has none or has ended.
    """
    return tuple(_child(stat, proc_root) for stat in _descendants(pid, proc_root))


def _descendants(pid: int, proc_root: Path) -> list[ProcessStat]:
    direct_children = (
        _children_of_tasks
        if (proc_root / str(pid) / "task" / str(pid) / "children").exists()
        else _children_by_parent(proc_root)
    )
    descendants: list[ProcessStat] = []
    queue, known = [pid], {pid}
    while queue and len(descendants) < MAX_CHILDREN:
        for number in direct_children(queue.pop(0), proc_root):
            stat = proc.read_stat(number, proc_root)
            if number not in known and isinstance(stat, ProcessStat):
                known.add(number)
                queue.append(number)
                descendants.append(stat)
    return descendants[:MAX_CHILDREN]


def _children_of_tasks(pid: int, proc_root: Path) -> list[int]:
    """Return the children by the kernel's list of each thread; a rank has dozens of threads."""
    found: set[int] = set()
    folder = f"{proc_root}/{pid}/task"
    with suppress(OSError):
        for thread in os.listdir(folder):  # noqa: PTH208 - three times as fast
            with suppress(OSError, ValueError), FileIO(f"{folder}/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    return sorted(found)


def _children_by_parent(proc_root: Path) -> Callable[[int, Path], list[int]]:
    """Like :func:`_children_of_tasks`, for kernels without those lists: by parent pids."""
    children_of: dict[int, list[int]] = defaultdict(list)
    for number in sorted(int(entry.name) for entry in proc_root.iterdir() if entry.name.isdigit()):
        stat = proc.read_stat(number, proc_root)
        if isinstance(stat, ProcessStat):
            children_of[stat.parent].append(number)
    return lambda pid, _: children_of[pid]


def _child(stat: ProcessStat, proc_root: Path) -> ChildProcess:
    dead = stat.life == ProcessState.DEAD
    return ChildProcess(
        stat.pid, _name(stat, proc_root), not dead, _exit_code(stat.exit_code) if dead else None
    )


def _exit_code(wait_status: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(wait_status)
    except (ValueError, OverflowError):
        return None


def _name(stat: ProcessStat, proc_root: Path) -> str:
    """Return the name that the process set itself, or its command line.

    A zombie has only the former.
    """
    if not stat.name.startswith(("python", "pt_main_thread")):
        return stat.name
    line = proc.read_text(proc_root / str(stat.pid) / "cmdline")
    words = line.replace("\0", " ").strip() if not isinstance(line, Unknown) else ""
    return words[:_NAME_LENGTH] or stat.name


class ChildrenUsage(NamedTuple):
    """CPU seconds of all descendants of a process so far, and when they were read (monotonic)."""

    cpu_s: float
    clock_s: float


def total_usage(pid: int, proc_root: Path = PROC) -> ChildrenUsage:
    """Return the CPU time of all descendants of ``pid``."""
    ticks = sum(stat.cpu_ticks for stat in _descendants(pid, proc_root))
    return ChildrenUsage(ticks / TICKS_PER_S, time.monotonic())


def cpu_share(*usages: ChildrenUsage) -> float | None:
    """Return CPU seconds per second between two readings; None without two.

    A descendant that ended between them counts as idle.
    """
    if len(usages) != 2 or usages[1].clock_s <= usages[0].clock_s:
        return None
    first, second = usages
    return max(second.cpu_s - first.cpu_s, 0.0) / (second.clock_s - first.clock_s)


class ChildrenWatch:
    """Tracks the children of one process between calls, so that reaped ones are reported too."""

    def __init__(self, pid: int, proc_root: Path = PROC) -> None:
        self._pid = pid
        self._proc_root = proc_root
        self._current: dict[int, ChildProcess] = {}
        self._gone: dict[int, tuple[float, ChildProcess]] = {}

    @property
    def living(self) -> list[int]:
        """The children that lived when they were last listed."""
        return [child.pid for child in self._current.values() if child.alive]

    def sample(self, since: float = 0.0) -> tuple[ChildProcess, ...]:
        """Return the current children, then those that disappeared at or after ``since`` (Unix s).

        The ``exit_code`` of a reaped child is None, unless a previous call saw it as a zombie.
        """
        now = time.time()
        current = {child.pid: child for child in list_children(self._pid, self._proc_root)}
        for pid, child in self._current.items():
            if pid not in current:
                self._gone[pid] = (
                    now,
                    ChildProcess(pid, child.name, alive=False, exit_code=child.exit_code),
                )
        for pid in sorted(self._gone, key=lambda pid: self._gone[pid][0])[:-MAX_CHILDREN]:
            del self._gone[pid]
        self._current = current
        return (*current.values(), *(child for when, child in self._gone.values() if when >= since))
