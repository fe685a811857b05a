"""Wait for the threads of process groups, so that freeing a group cannot deadlock.

A gloo thread that has completed a collective frees its tensors, for which it may need the GIL. If a
DDP model is freed after ``destroy_process_group``, its reducer (torch 2.13 and earlier) frees the
group, which joins that thread with the GIL held: both wait forever. This happens if the thread,
which has microseconds of work left, did not run between the last collective and the end of the
function that has the model. It cannot happen once the thread is idle.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

#: Maximum wait: threads that compute, e.g. those of a data loader, do not become idle.
IDLE_TIMEOUT_S = 0.2
#: In such a pause, a thread that waits for the GIL acquires it, or becomes runnable.
_PAUSE_S = 0.002
#: Pauses without a running thread: in the first one, a thread may have missed the GIL.
_IDLE_PAUSES = 2
_THREADS = Path("/proc/self/task")


def wait_until_idle() -> None:
    """Release the GIL until all other threads of this process sleep; see :data:`IDLE_TIMEOUT_S`."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    idle_pauses = 0
    while idle_pauses < _IDLE_PAUSES and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        idle_pauses = 0 if _another_thread_runs() else idle_pauses + 1


def _another_thread_runs() -> bool:
    own = str(threading.get_native_id())
    with suppress(OSError):
        return any(_runs(thread) for thread in _THREADS.iterdir() if thread.name != own)
    return False


def _runs(thread: Path) -> bool:
    with suppress(OSError):  # the thread has ended
        state = (thread / "stat").read_bytes().rpartition(b") ")[2][:1]
        return state in b"RD"
    return False
