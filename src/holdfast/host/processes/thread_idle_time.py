"""Reads how long a thread has not run, which distinguishes sleeping from slow threads.

Source: /proc/<pid>/sched (kernel/sched/debug.c), if the kernel has it (CONFIG_SCHED_DEBUG; always
since 6.15). Each CPU has its own clock there, without the time of interrupts and the hypervisor,
and these clocks diverge by seconds. Therefore the current time is read on the CPU on which the
thread last ran.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.findings import Unknown
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

_LAST_RUN = "se.exec_start"
_THIS_THREAD = "thread-self"


def thread_idle_s(pid: int, proc_root: Path = PROC) -> float | Unknown:
    """Return the seconds since the main thread of ``pid`` last ran.

    Reading its memory does not wake it.
    """
    last_run, stat = _last_run_s(proc_root / str(pid)), proc.read_stat(pid, proc_root)
    if isinstance(last_run, Unknown):
        return last_run
    if isinstance(stat, Unknown):
        return stat
    try:
        with _pinned_to(stat.processor):
            now = _last_run_s(proc_root / _THIS_THREAD)
    except OSError as error:
        return Unknown(
            f"cannot run on CPU {stat.processor}, where {pid} last ran: {error.strerror}"
        )
    return now if isinstance(now, Unknown) else max(0.0, now - last_run)


@contextmanager
def _pinned_to(processor: int) -> Iterator[None]:
    """Pin this thread to one CPU."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _last_run_s(process: Path) -> float | Unknown:
    """Return when a thread last ran, by the scheduler's clock; for this thread that is now."""
    fields = proc.read_fields(process / "sched")
    if isinstance(fields, Unknown):
        return fields
    try:
        return float(fields[_LAST_RUN]) / 1e3
    except (KeyError, ValueError):
        return Unknown(f"{process}/sched has no {_LAST_RUN}")
