"""Poll a condition in the job's store with exponential backoff, until it holds or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Bounds of the pause between two polls, in seconds. The first pauses are short, so that ranks that
#: arrive together do not wait for each other's sleep.
MIN_POLL_S, MAX_POLL_S = 0.001, 0.05


def wait_until(
    is_ready: Callable[[], bool],
    limit_s: float | Callable[[], float],
    *,
    check_abort: Callable[[], None] = lambda: None,
    min_pause_s: float = MIN_POLL_S,
    max_pause_s: float = MAX_POLL_S,
) -> bool:
    """Return True once ``is_ready()`` does, False after ``limit_s`` seconds.

    A function ``limit_s`` is read at every poll, because the limit may shrink during the wait.
    ``check_abort`` runs before each pause and raises to end the wait.
    """
    began, pause_s = time.monotonic(), min_pause_s
    while not is_ready():
        check_abort()
        left_s = began + (limit_s() if callable(limit_s) else limit_s) - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, max_pause_s)
    return True
