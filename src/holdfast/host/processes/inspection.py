"""Inspects processes through /proc: state, CPU time, I/O, blocking system call.

No process is disturbed or waited for. A reused pid is detected by the start time of the process
(``start_ticks``, from the trace file or an earlier sample).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ProcessState
from holdfast.host.processes import proc, system_calls
from holdfast.host.processes.proc import PROC, TICKS_PER_S, ProcessGone
from holdfast.host.processes.system_calls import SystemCall

__all__ = [
    "Activity",
    "IoBytes",
    "ProcessSample",
    "compare_samples",
    "resident_bytes",
    "sample_process",
]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class IoBytes(msgspec.Struct, frozen=True):
    """Bytes since the process started: by read and write calls, and those that reached a disk."""

    called_bytes: int
    disk_bytes: int


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of one process (``time``: Unix s; ``clock_s``: monotonic, for differences).

    ``cpu_s`` is the CPU time of all threads; ``call`` is of the main thread.
    """

    pid: int
    life: ProcessState
    time: float
    clock_s: float
    name: str = ""
    state: str = ""
    start_ticks: int = 0
    cpu_s: float = 0.0
    moved: IoBytes | Unknown = Unknown("not inspected")
    call: SystemCall | Unknown = Unknown("not inspected")

    @property
    def blocked_on(self) -> str | None:
        """The file, pipe or device on which the main thread is blocked in a system call, in words.

        None if none.
        """
        return self.call.blocked_on if isinstance(self.call, SystemCall) else None


class Activity(msgspec.Struct, frozen=True):
    """Activity of a process between two samples.

    ``cpu_share`` is CPU seconds per second, over 1 with several busy threads. Unknown values are
    None; ``io_bytes`` includes sockets and pipes, ``disk_bytes`` does not.
    """

    seconds: float
    cpu_share: float | None
    io_bytes: int | None
    disk_bytes: int | None


def sample_process(
    pid: int, start_ticks: int | None = None, proc_root: Path = PROC
) -> ProcessSample | Unknown:
    """Sample the process ``pid`` now.

    One that has ended, or whose pid was reused, has the state DEAD.
    """
    now, clock_s = time.time(), time.monotonic()
    stat = proc.same_process(pid, start_ticks, proc_root)
    if isinstance(stat, ProcessGone):
        return ProcessSample(pid=pid, life=ProcessState.DEAD, time=now, clock_s=clock_s)
    if isinstance(stat, Unknown):
        return stat
    alive = stat.life != ProcessState.DEAD
    return ProcessSample(
        pid=pid,
        life=stat.life,
        time=now,
        clock_s=clock_s,
        name=stat.name,
        state=stat.state,
        start_ticks=stat.started_ticks,
        cpu_s=stat.cpu_ticks / TICKS_PER_S,
        moved=_read_io(proc_root / str(pid)) if alive else Unknown("the process has ended"),
        call=system_calls.current_system_call(pid, proc_root)
        if alive
        else Unknown("the process has ended"),
    )


def resident_bytes(pid: int, proc_root: Path = PROC) -> int | None:
    """Return the resident memory of a process; None if it cannot be read."""
    text = proc.read_text(proc_root / str(pid) / "statm")
    fields = [] if isinstance(text, Unknown) else text.split()
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else None


def _read_io(process: Path) -> IoBytes | Unknown:
    counters = proc.read_fields(process / "io")
    if isinstance(counters, Unknown):
        return counters
    try:
        called = int(counters["rchar"]) + int(counters["wchar"])
        return IoBytes(called, int(counters["read_bytes"]) + int(counters["write_bytes"]))
    except (KeyError, ValueError):
        return Unknown(f"{process}/io has an unexpected format")


def compare_samples(first: ProcessSample, second: ProcessSample) -> Activity:
    """Return the activity of a process between two samples.

    Unknown if they are of different processes.
    """
    seconds = second.clock_s - first.clock_s
    same = first.pid == second.pid and first.start_ticks == second.start_ticks != 0
    if not same or seconds <= 0:
        return Activity(max(seconds, 0.0), None, None, None)
    share = max(second.cpu_s - first.cpu_s, 0.0) / seconds
    before, after = first.moved, second.moved
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return Activity(seconds, share, None, None)
    return Activity(
        seconds,
        share,
        after.called_bytes - before.called_bytes,
        after.disk_bytes - before.disk_bytes,
    )
