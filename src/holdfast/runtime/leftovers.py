"""What dead processes leave in shared memory that carries no process id, and who would remove it if it were let.

* Python's resource tracker (``multiprocessing``, start methods spawn and forkserver: semaphores of queues and locks,
  one tracker a process) and torch's ``torch_shm_manager`` (sharing strategy file_system) unlink what their owners
  made once those are dead, and end. A launcher that kills them with everything else is why ``sem.mp-*`` stays behind.
* DeepSpeed on CPU (``csrc/cpu/comm/shm.cpp``, ``shm_initialize``; read in 0.19) makes a buffer a rank, 69 MB as it lies
  there, and never unlinks it, not even in a job that ends well. Its name is that of the user, of MASTER_ADDR and
  of MASTER_PORT, and the rank.
"""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - that is where shm_open puts what it makes
#: The managers of torch go two seconds after the last process that used them.
CLEANERS_LIMIT_S = 3.0
_CLEANERS = (b"resource_tracker", b"torch_shm_manager")


def cleans_up(pid: int) -> bool:
    """Whether the process waits for others to end, to remove what they left."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _CLEANERS)


def remove(address: str, port: int, shm: Path = SHM) -> None:
    """Remove the buffers of ranks that met at ``address`` and ``port``; they must be dead, and the port still ours."""
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_"
    for left in shm.glob(f"{glob.escape(name)}*"):
        with suppress(OSError):
            left.unlink()
