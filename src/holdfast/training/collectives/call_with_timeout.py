"""Run a call that may block without end, such as a query of the job's store, in a thread.

torch's client waits without a limit for a stopped server. Measured with torch 2.13: ``check`` on a
TCPStore whose process was stopped returned when that process continued, whatever the store's
timeout. A thread that gets no answer is abandoned. This happens only in calls that have already
waited for a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
#: Store queries without an answer yet; while there is one, the store is not queried again.
_blocked_queries: list[threading.Thread] = []


class CallTimedOut(Exception):
    """The call did not return in time, or an earlier one still blocks."""


def call_with_timeout(
    function: Callable[[], _T],
    limit_s: float,
    *,
    blocked: list[threading.Thread] = _blocked_queries,
) -> _T:
    """Return what ``function()`` returns, or raise what it raises, within ``limit_s`` seconds.

    ``blocked`` lists the threads of earlier calls that did not return.

    Raises:
        CallTimedOut: the function, or an earlier one, did not return in time.
    """
    blocked[:] = [thread for thread in blocked if thread.is_alive()]
    if blocked:
        raise CallTimedOut
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, name="holdfast call with timeout", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        blocked.append(thread)
        raise CallTimedOut
    return results[0]
