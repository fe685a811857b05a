"""Finds the thread at work for which the main thread of a rank waits, from the stacks of all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.user_code import is_user_file

#: Library frames of a thread that waits for another one, or for its work.
_WAITS = re.compile(
    r"/threading\.py:(wait|acquire|join|_wait_for_tstate_lock)$|/queue\.py:(get|put)$"
    r"|/concurrent/futures/_base\.py:(result|exception|wait)$"
)
#: Innermost frames among which a wait is: ``result`` calls ``wait``.
_INNERMOST = 3


def thread_at_work(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """Return a thread in the user's code that waits for no thread, while the main thread does.

    The main thread is the first one. None if it waits for none, or if all threads wait.
    """
    if not threads or not _waits(threads[0]):
        return None
    return next(
        (thread for thread in threads[1:] if not _waits(thread) and user_line(thread) is not None),
        None,
    )


def user_line(thread: ThreadStack) -> SourceLine | None:
    """Return the innermost line of the user's code in a thread."""
    return next((frame for frame in thread.frames if is_user_file(frame.file)), None)


def _waits(thread: ThreadStack) -> bool:
    return any(
        _WAITS.search(f"{frame.file}:{frame.function}") for frame in thread.frames[:_INNERMOST]
    )
