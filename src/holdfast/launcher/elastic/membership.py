"""Nodes that leave a running job, and nodes that wait to join.

torchelastic lets nodes join and notices nodes that disappear, but cannot exclude one. The code uses
private attributes of its rendezvous (dynamic_rendezvous.py of torch 2.4 to 2.13), guarded: if they
are missing, the other nodes continue once this node's heartbeats time out, after 15 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousHandler, dynamic_rendezvous

#: Wait for late nodes after an exclusion; at the start of a job it is 30 s.
LAST_CALL_S = 3.0
_LEAVE_TIMEOUT_S = 10.0
_POLL_S = 0.5


def count_waiting_nodes(handler: RendezvousHandler) -> int:
    """Return the number of nodes that wait to join when another one leaves."""
    state = getattr(_state_holder(handler), "state", None)
    return len(getattr(state, "redundancy_list", ())) + len(getattr(state, "wait_list", ()))


def leave(handler: RendezvousHandler) -> None:
    """Remove this node from the job, which continues.

    If this process hosts the rendezvous store, blocks until the job has ended.
    """
    # shutdown would end the job on the other nodes
    handler.shutdown = lambda: True  # type: ignore[method-assign]
    private: Any = handler
    with suppress(Exception):
        private._stop_heartbeats()  # noqa: SLF001
        leaving = dynamic_rendezvous._RendezvousExitOp()  # noqa: SLF001
        private._op_executor.run(leaving, time.monotonic() + _LEAVE_TIMEOUT_S)  # noqa: SLF001
    if _hosts_store(handler):
        with suppress(Exception):
            while not handler.is_closed():
                time.sleep(_POLL_S)
            time.sleep(_POLL_S)


@contextmanager
def last_call_timeout(handler: RendezvousHandler, limit_s: float | None) -> Iterator[None]:
    """Limit the wait for late nodes inside the with-block; None changes nothing."""
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


def _state_holder(handler: RendezvousHandler) -> Any:
    return getattr(handler, "_state_holder", None)


def _hosts_store(handler: RendezvousHandler) -> bool:
    """Return whether this process hosts the rendezvous store; True if that cannot be determined."""
    store = getattr(getattr(_state_holder(handler), "_backend", None), "_store", None)
    port = getattr(store, "port", None)
    if port is None:
        return store is None  # a file store needs no process
    import psutil  # noqa: PLC0415 - 7 ms, only if this node is excluded

    connections = psutil.Process().net_connections(kind="tcp")
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections
    )
