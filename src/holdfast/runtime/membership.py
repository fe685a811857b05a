"""Nodes that leave a job while it goes on, and nodes that stand by: what torch's rendezvous hides.

torchelastic knows nodes that come, and nodes that vanish; it has no word for one that is sent away. What is used of it
is private (read in dynamic_rendezvous.py of torch 2.4 to 2.13) and guarded: where it is missing, the others go on once
the node's heartbeats are missed, 15 s later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psutil
from torch.distributed.elastic.rendezvous import RendezvousHandler, dynamic_rendezvous

#: Once a node was sent away nobody else is waited for as long as at the start of a job (30 s): all that come are there.
LAST_CALL_S = 3.0
_LEAVE_LIMIT_S = 10.0
_LOOK_EVERY_S = 0.5


def standing_by(handler: RendezvousHandler) -> int:
    """How many nodes wait to be taken in where another leaves."""
    state = _state(handler)
    return len(getattr(state, "redundancy_list", ())) + len(getattr(state, "wait_list", ()))


def leave(handler: RendezvousHandler) -> None:
    """Take this node out of the job, which goes on. Blocks as long as this process holds what the others meet at."""
    handler.shutdown = lambda: True  # type: ignore[method-assign] # it would end the job of the others
    with suppress(Exception):
        handler._stop_heartbeats()  # type: ignore[attr-defined]  # noqa: SLF001
        leaving = dynamic_rendezvous._RendezvousExitOp()  # noqa: SLF001
        handler._op_executor.run(leaving, time.monotonic() + _LEAVE_LIMIT_S)  # type: ignore[attr-defined] # noqa: SLF001
    if _holds_store(handler):
        with suppress(Exception):
            while not handler.is_closed():
                time.sleep(_LOOK_EVERY_S)
            time.sleep(_LOOK_EVERY_S)


@contextmanager
def last_call(handler: RendezvousHandler, limit_s: float | None) -> Iterator[None]:
    """Inside the with-block nodes that are late are waited for so long, and no longer; None changes nothing."""
    timeout: Any = getattr(getattr(handler, "_settings", None), "timeout", None)
    usual = getattr(timeout, "_last_call", None)
    if limit_s is None or not isinstance(usual, timedelta):
        yield
        return
    timeout._last_call = min(usual, timedelta(seconds=limit_s))  # noqa: SLF001
    try:
        yield
    finally:
        timeout._last_call = usual  # noqa: SLF001


def _state(handler: RendezvousHandler) -> Any:
    return getattr(getattr(handler, "_state_holder", None), "state", None)


def _holds_store(handler: RendezvousHandler) -> bool:
    """Whether the store of the rendezvous lives in this process; True where that cannot be told."""
    store = getattr(getattr(getattr(handler, "_state_holder", None), "_backend", None), "_store", None)
    port = getattr(store, "port", None)
    if port is None:
        return store is None  # a store in a file outlives us
    listening = psutil.Process().net_connections(kind="tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in listening)
