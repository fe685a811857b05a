"""The processes that a process started: data-loader workers mostly, alive, dead and waiting to be reaped, or gone."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from holdfast.facts import proc
from holdfast.facts.proc import PROC, Stat
from holdfast.facts.ranks import Child, Life
from holdfast.findings import Unknown

MOST_CHILDREN = 1024
_NAME_LENGTH = 120


def children(pid: int, proc_root: Path = PROC) -> tuple[Child, ...]:
    """All living or unreaped descendants of ``pid``, nearest first; empty where it has none or is gone."""
    return tuple(_child(stat, proc_root) for stat in _descendants(pid, proc_root))


def _descendants(pid: int, proc_root: Path) -> list[Stat]:
    direct = _by_task if (proc_root / str(pid) / "task" / str(pid) / "children").exists() else _by_parent(proc_root)
    found: list[Stat] = []
    queue, known = [pid], {pid}
    while queue and len(found) < MOST_CHILDREN:
        for number in direct(queue.pop(0), proc_root):
            stat = proc.stat(number, proc_root)
            if number not in known and isinstance(stat, Stat):
                known.add(number)
                queue.append(number)
                found.append(stat)
    return found[:MOST_CHILDREN]


def _by_task(pid: int, proc_root: Path) -> list[int]:
    """Children by the kernel's own list, which each thread keeps for those that it started."""
    try:
        threads = list((proc_root / str(pid) / "task").iterdir())
    except OSError:
        return []
    lists = (proc.text(thread / "children") for thread in threads)
    return sorted({int(word) for text in lists if isinstance(text, str) for word in text.split() if word.isdigit()})


def _by_parent(proc_root: Path) -> Callable[[int, Path], list[int]]:
    """As :func:`_by_task` where the kernel was built without those lists: by everybody's parent."""
    children_of: dict[int, list[int]] = defaultdict(list)
    for number in sorted(int(entry.name) for entry in proc_root.iterdir() if entry.name.isdigit()):
        stat = proc.stat(number, proc_root)
        if isinstance(stat, Stat):
            children_of[stat.parent].append(number)
    return lambda pid, _: children_of[pid]


def _child(stat: Stat, proc_root: Path) -> Child:
    dead = stat.life == Life.DEAD
    return Child(stat.pid, _name(stat, proc_root), not dead, _exit_code(stat.exit_code) if dead else None)


def _exit_code(wait_status: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(wait_status)
    except (ValueError, OverflowError):
        return None


def _name(stat: Stat, proc_root: Path) -> str:
    """The name that the process gave itself, or what it was started as; a zombie has only the former."""
    if not stat.name.startswith(("python", "pt_main_thread")):
        return stat.name
    line = proc.text(proc_root / str(stat.pid) / "cmdline")
    words = line.replace("\0", " ").strip() if not isinstance(line, Unknown) else ""
    return words[:_NAME_LENGTH] or stat.name


class ChildrenWatch:
    """Remembers the children of one process from look to look, so that one that died and was reaped is told of."""

    def __init__(self, pid: int, proc_root: Path = PROC) -> None:
        self._pid = pid
        self._proc_root = proc_root
        self._here: dict[int, Child] = {}
        self._gone: dict[int, tuple[float, Child]] = {}

    def look(self, since: float = 0.0) -> tuple[Child, ...]:
        """The children there now, then those that went between two looks at or after ``since`` (Unix s).

        How a reaped child ended is not known: its ``exit_code`` is None, unless it was seen as a zombie before.
        """
        now = time.time()
        here = {child.pid: child for child in children(self._pid, self._proc_root)}
        for pid, child in self._here.items():
            if pid not in here:
                self._gone[pid] = (now, Child(pid, child.name, alive=False, exit_code=child.exit_code))
        for pid in sorted(self._gone, key=lambda pid: self._gone[pid][0])[:-MOST_CHILDREN]:
            del self._gone[pid]
        self._here = here
        return (*here.values(), *(child for when, child in self._gone.values() if when >= since))
