"""Removes shared memory that dead processes left under names without a process id.

* Python's resource tracker (``multiprocessing`` with start methods spawn and forkserver: semaphores
  of queues and locks, one tracker per process) and torch's ``torch_shm_manager`` (sharing strategy
  file_system) unlink what their owners created once those are dead, and then exit. If a launcher
  kills them together with everything else, ``sem.mp-*`` stays behind.
* DeepSpeed on CPU (``csrc/cpu/comm/shm.cpp``, ``shm_initialize``; version 0.19) creates a buffer of
  69 MB per rank and never unlinks it. Its name consists of the user id, MASTER_ADDR, MASTER_PORT
  and the rank.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - the folder of shm_open
#: torch's managers exit 2 s after the last process that used them.
CLEANERS_LIMIT_S = 3.0
_CLEANERS = (b"resource_tracker", b"torch_shm_manager")


def can_clean_up(pid: int) -> bool:
    """Return whether the process waits for others to exit and then removes what they left."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _CLEANERS)


def remove_shared_memory(address: str, port: int, shm: Path = SHM) -> None:
    """Remove the buffers of dead ranks whose rendezvous was at ``address`` and ``port``.

    Call it before another job can use the port.
    """
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_"
    for buffer in shm.glob(f"{glob.escape(name)}*"):
        with suppress(OSError):
            buffer.unlink()
