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

#: Maximum wait for threads of gloo groups, which become idle, on a busy host late.
GROUP_TIMEOUT_S = 5.0
#: The same for other threads: those that compute, e.g. of a data loader, do not become idle.
IDLE_TIMEOUT_S = 0.2
#: In such a pause, a thread that waits for the GIL acquires it, or becomes runnable.
_PAUSE_S = 0.002
#: Pauses without a running thread: in the first one, a thread may have missed the GIL.
_IDLE_PAUSES = 2
_THREADS = Path("/proc/self/task")
#: Name of the threads of ``ProcessGroupGloo``; older versions of torch give them none.
_GROUP_THREAD = b"(pt_gloo_"


def wait_until_idle() -> None:
    """Release the GIL until all other threads of this process sleep, or a timeout expires."""
    began = time.monotonic()
    idle_pauses = 0
    while idle_pauses < _IDLE_PAUSES and time.monotonic() < began + GROUP_TIMEOUT_S:
        time.sleep(_PAUSE_S)
        running = _running_threads()
        is_early = time.monotonic() < began + IDLE_TIMEOUT_S
        waits = bool(running) if is_early else any(running)
        idle_pauses = 0 if waits else idle_pauses + 1


def _running_threads() -> list[bool]:
    """Return an entry for each other thread that runs or could: whether it is of a gloo group."""
    own, running = str(threading.get_native_id()), []
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError):  # the thread has ended
                stat = (thread / "stat").read_bytes()
                if thread.name != own and stat.rpartition(b") ")[2][:1] in b"RD":
                    running.append(_GROUP_THREAD in stat)
    return running
