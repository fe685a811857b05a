"""For how long a thread has not run at all, as the kernel's scheduler notes it: who sleeps is told from who is slow.

Source: /proc/<pid>/sched (kernel/sched/debug.c), where the kernel has it (CONFIG_SCHED_DEBUG; always since 6.15).
"""

from __future__ import annotations

from pathlib import Path

from holdfast.facts import proc
from holdfast.facts.proc import PROC
from holdfast.findings import Unknown

_LAST_RUN = "se.exec_start"
_OWN = "thread-self"


def asleep_s(pid: int, proc_root: Path = PROC) -> float | Unknown:
    """Seconds since the main thread of ``pid`` last ran; reading its memory does not wake it."""
    seen, now = (_last_run_s(proc_root / name) for name in (str(pid), _OWN))
    if isinstance(seen, Unknown):
        return seen
    return now if isinstance(now, Unknown) else max(0.0, now - seen)


def _last_run_s(process: Path) -> float | Unknown:
    """When a thread last ran, on the scheduler's own clock; our own thread, which asks, runs now."""
    found = proc.fields(process / "sched")
    if isinstance(found, Unknown):
        return found
    try:
        return float(found[_LAST_RUN]) / 1e3
    except (KeyError, ValueError):
        return Unknown(f"{process}/sched does not say when it last ran")
