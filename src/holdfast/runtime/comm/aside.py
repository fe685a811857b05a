"""Asks the job's store, which may never answer: torch's client waits without a limit for a server that stands still.

Measured with torch 2.13: ``check`` on a TCPStore whose process was stopped came back when that went on, whatever time
limit the store had. So it is asked in a thread, which is left behind where no answer comes; that happens in calls alone
that have waited for a second already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
#: Threads that have got no answer yet; as long as there is one, the client is not asked again.
_waiting: list[threading.Thread] = []


class Silent(Exception):
    """No answer came in time."""


def aside(ask: Callable[[], _T], limit_s: float) -> _T:
    """What ``ask()`` gives, or raises, within so many seconds. Raises Silent: it gave nothing."""
    _waiting[:] = [thread for thread in _waiting if thread.is_alive()]
    if _waiting:
        raise Silent
    given: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            raised.append(error)

    thread = threading.Thread(target=run, name="holdfast store", daemon=True)
    thread.start()
    thread.join(limit_s)
    if raised:
        raise raised[0]
    if not given:
        _waiting.append(thread)
        raise Silent
    return given[0]
