"""Nodes that leave a running job, nodes that wait to join, and a rendezvous that does not answer.

torchelastic lets nodes join and notices nodes that disappear, but cannot exclude one. The code uses
private attributes of its rendezvous (dynamic_rendezvous.py of torch 2.4 to 2.13), guarded: if they
are missing, the other nodes continue once this node's heartbeats time out, after 15 s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
    dynamic_rendezvous,
)

#: Wait for late nodes after an exclusion; at the start of a job it is 30 s.
LAST_CALL_S = 3.0
_LEAVE_TIMEOUT_S = 10.0
_POLL_S = 0.5
#: Interval in which torch's own handler asks for waiting nodes.
_COUNT_EVERY_S = 1.0
#: Wait for the rendezvous to note the end of the job.
_SHUTDOWN_TIMEOUT_S = 5.0


class BackgroundCalls:
    """Makes ``handler`` call the rendezvous in threads.

    While its store does not answer, each call takes ``read_timeout`` (60 s), in which torch's agent
    would not monitor the workers. The methods of the handler are not thread-safe.
    """

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler, self._type = handler, type(handler)
        self._thread = threading.Thread()
        self._count, self._counted_at = 0, 0.0
        for name in ("num_nodes_waiting", "shutdown"):
            setattr(handler, name, getattr(self, name))

    def begin_round(self) -> None:
        """Prepare the handler for the next rendezvous, once it is not in use."""
        self._wait(None)
        self._count = 0
        private: Any = self._handler
        if getattr(private, "_bootstrap_store_info", None) is not None:
            # torch 2.13 announces it in the first round only; a node that joins later would wait.
            private._bootstrap_store_info = None  # noqa: SLF001

    def num_nodes_waiting(self) -> int:
        """Return the newest number of waiting nodes, and request a newer one."""
        if not self._thread.is_alive() and time.monotonic() > self._counted_at + _COUNT_EVERY_S:
            self._counted_at = time.monotonic()
            self._start(self._count_nodes)
        return self._count

    def shutdown(self) -> bool:
        """Note the end of the job in the rendezvous; return whether it answered."""
        self._wait(_SHUTDOWN_TIMEOUT_S)
        if self._thread.is_alive():
            return False
        self._start(lambda: self._type.shutdown(self._handler))
        self._wait(_SHUTDOWN_TIMEOUT_S)
        return not self._thread.is_alive()

    def _count_nodes(self) -> None:
        with suppress(RendezvousError):  # a watcher reports a leader that does not answer
            self._count = self._type.num_nodes_waiting(self._handler)

    def _start(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, name="holdfast nodes", daemon=True)
        self._thread.start()

    def _wait(self, timeout_s: float | None) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)


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
