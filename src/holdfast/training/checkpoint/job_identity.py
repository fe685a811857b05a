"""Which job this process belongs to, for manifests, the owner file and the run's own record."""

from __future__ import annotations

import socket
from pathlib import Path

from holdfast.core import settings

#: torchrun's default run id, which all jobs share.
_NO_RUN_ID = "none"
#: Field of /proc/<pid>/stat after the command name: the start time in clock ticks.
_START_FIELD = 19


def run_name() -> str:
    """Return the name of the run that `holdfast run` started; '' without it."""
    trace = settings.read_path("HOLDFAST_TRACE")
    return trace.parent.name if trace else ""


def job_name() -> str:
    """Return a name that all generations of this job share; '' if there is none."""
    run_id = settings.read_text("TORCHELASTIC_RUN_ID") or ""
    return run_name() or (run_id if run_id != _NO_RUN_ID else "")


def host_name() -> str:
    """Return host name and PID namespace: process ids are comparable only within one."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None: it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin1")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[_START_FIELD])
