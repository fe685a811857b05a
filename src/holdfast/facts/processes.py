"""Processes seen from outside, through /proc: whether they live, what they use, what they wait for, whom they started.

Nothing here disturbs a process or waits for it. A number that was given to another process meanwhile is noticed by the
start of the process (``start_ticks``, from the box or an earlier look).
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from holdfast.facts import proc, system_calls
from holdfast.facts.children import ChildrenWatch, children
from holdfast.facts.memory_kills import MemoryKills, memory_killed, memory_kills
from holdfast.facts.proc import PROC, TICKS_PER_S, Gone
from holdfast.facts.ranks import Child, Life
from holdfast.facts.system_calls import SystemCall
from holdfast.findings import Unknown

__all__ = [
    "Activity", "Child", "ChildrenWatch", "MemoryKills", "Moved", "Process", "between", "children", "look",
    "memory_killed", "memory_kills",
]  # fmt: skip


class Moved(msgspec.Struct, frozen=True):
    """Bytes since the process began: through read and write calls of any kind, and those that reached a disk."""

    called_bytes: int
    disk_bytes: int


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment (``time``: Unix s; ``clock_s``: monotonic, for differences).

    ``cpu_s`` is of all its threads; ``call`` and ``kernel_function`` (wchan) are of its main thread.
    """

    pid: int
    life: Life
    time: float
    clock_s: float
    name: str = ""
    state: str = ""
    start_ticks: int = 0
    cpu_s: float = 0.0
    moved: Moved | Unknown = Unknown("not looked at")
    call: SystemCall | Unknown = Unknown("not looked at")
    kernel_function: str = ""

    @property
    def blocked_on(self) -> str | None:
        """The file, pipe or device that the main thread waits for in a system call, in words; None where none is."""
        return self.call.blocked_on if isinstance(self.call, SystemCall) else None


class Activity(msgspec.Struct, frozen=True):
    """What a process did between two looks; ``cpu_share`` is CPU seconds a second, over 1 with several busy threads.

    Where a part could not be seen it is None; ``io_bytes`` counts sockets and pipes too, ``disk_bytes`` does not.
    """

    seconds: float
    cpu_share: float | None
    io_bytes: int | None
    disk_bytes: int | None


def look(pid: int, start_ticks: int | None = None, proc_root: Path = PROC) -> Process | Unknown:
    """The process ``pid`` now. One that is gone, or whose number was given away, is a Process of life DEAD."""
    now, clock_s = time.time(), time.monotonic()
    seen = proc.same_process(pid, start_ticks, proc_root)
    if isinstance(seen, Gone):
        return Process(pid=pid, life=Life.DEAD, time=now, clock_s=clock_s)
    if isinstance(seen, Unknown):
        return seen
    alive = seen.life != Life.DEAD
    wchan = proc.text(proc_root / str(pid) / "wchan") if alive else ""
    return Process(
        pid=pid,
        life=seen.life,
        time=now,
        clock_s=clock_s,
        name=seen.name,
        state=seen.state,
        start_ticks=seen.started_ticks,
        cpu_s=seen.cpu_ticks / TICKS_PER_S,
        moved=_moved(proc_root / str(pid)) if alive else Unknown("it has ended"),
        call=system_calls.current(pid, proc_root) if alive else Unknown("it has ended"),
        kernel_function="" if isinstance(wchan, Unknown) or wchan == "0" else wchan.strip(),
    )


def _moved(process: Path) -> Moved | Unknown:
    counters = proc.fields(process / "io")
    if isinstance(counters, Unknown):
        return counters
    try:
        called = int(counters["rchar"]) + int(counters["wchar"])
        return Moved(called, int(counters["read_bytes"]) + int(counters["write_bytes"]))
    except (KeyError, ValueError):
        return Unknown(f"{process}/io is not what Linux writes")


def between(first: Process, second: Process) -> Activity:
    """What the process did from the first look to the second; nothing can be said of two different processes."""
    seconds = second.clock_s - first.clock_s
    same = first.pid == second.pid and first.start_ticks == second.start_ticks != 0
    if not same or seconds <= 0:
        return Activity(max(seconds, 0.0), None, None, None)
    share = max(second.cpu_s - first.cpu_s, 0.0) / seconds
    before, after = first.moved, second.moved
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return Activity(seconds, share, None, None)
    return Activity(seconds, share, after.called_bytes - before.called_bytes, after.disk_bytes - before.disk_bytes)
