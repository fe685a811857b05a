"""For how long a thread has not run at all, as the kernel's scheduler notes it: who sleeps is told from who is slow.

Source: /proc/<pid>/sched (kernel/sched/debug.c), where the kernel has it (CONFIG_SCHED_DEBUG; always since 6.15). Each
processor has a clock of its own there, less what interrupts and the hypervisor took from it, and these part by seconds.
So the time is asked for on the processor on which the thread last ran.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.facts import proc
from holdfast.facts.proc import PROC
from holdfast.findings import Unknown

_LAST_RUN = "se.exec_start"
_OWN = "thread-self"


def asleep_s(pid: int, proc_root: Path = PROC) -> float | Unknown:
    """Seconds since the main thread of ``pid`` last ran; reading its memory does not wake it."""
    seen, stat = _last_run_s(proc_root / str(pid)), proc.stat(pid, proc_root)
    if isinstance(seen, Unknown):
        return seen
    if isinstance(stat, Unknown):
        return stat
    try:
        with _on(stat.processor):
            now = _last_run_s(proc_root / _OWN)
    except OSError as error:
        return Unknown(f"processor {stat.processor}, where {pid} last ran, cannot be asked: {error.strerror}")
    return now if isinstance(now, Unknown) else max(0.0, now - seen)


@contextmanager
def _on(processor: int) -> Iterator[None]:
    """Let this thread run on one processor for a moment."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _last_run_s(process: Path) -> float | Unknown:
    """When a thread last ran, on the scheduler's own clock; our own thread, which asks, runs now."""
    found = proc.fields(process / "sched")
    if isinstance(found, Unknown):
        return found
    try:
        return float(found[_LAST_RUN]) / 1e3
    except (KeyError, ValueError):
        return Unknown(f"{process}/sched does not say when it last ran")
