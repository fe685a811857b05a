"""Monitor a step from inside its process: end it if a stage takes too long or another rank fails.

A thread with its own connection to the store: torch calls that block forever cannot be interrupted,
but their process can be ended. A failing rank writes the reason to the store; the others, which
would wait for half an hour, read it and end too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from torch.distributed.distributed_c10d import Store

from holdfast.preflight.torch_smoke_test import SmokeTestFailure, SmokeTestPlan, SmokeTestStage
from holdfast.training.collectives.call_with_timeout import CallTimedOut, call_with_timeout

#: Poll interval, and how long failing ranks wait for the failures of others.
_POLL_S, _COLLECT_S = 0.1, 0.7
#: Limits for connecting to the store at the end, and for all calls to it then.
_REACH_S, _STORE_LIMIT_S = 2.0, 4.0
_T = TypeVar("_T")
_ABORT = "abort"


class StageFailed(Exception):
    """A stage failed; ``missing`` are the ranks that did not reach it."""

    def __init__(self, why: str, missing: tuple[int, ...] = ()) -> None:
        super().__init__(why)
        self.missing = missing


class StageWatchdog:
    """The stages of one step of ``processes`` ranks; ``emit`` writes an entry for the command.

    ``connect_store`` connects within that many seconds; a rank that fails before it uses it too.
    """

    def __init__(
        self,
        plan: SmokeTestPlan,
        processes: int,
        emit: Callable[[SmokeTestStage | SmokeTestFailure], None],
        connect_store: Callable[[float], Store],
    ) -> None:
        self._plan, self._processes = plan, processes
        self._emit, self._connect_store = emit, connect_store
        self._name, self._began, self._limit_s = "", 0.0, plan.limit_s
        self._ending = threading.Lock()  # acquired once, by the thread that ends the process
        self._store: Store | None = None
        for watch in (self._enforce_limits, self._watch_store):
            threading.Thread(target=watch, name="holdfast watch", daemon=True).start()

    def begin(self, name: str, limit_s: float | None = None) -> None:
        """Begin a stage and its time limit."""
        self._limit_s = limit_s or self._plan.limit_s
        self._began, self._name = time.monotonic(), name
        if self._store is not None:
            self._store.set(self._key(name, self._plan.rank), "")

    def done(self, entry: SmokeTestStage) -> None:
        """Report a successful stage."""
        self._name = ""
        self._emit(entry)

    def connect(self) -> None:
        """Connect to the store, and watch it from now on. Raises RuntimeError."""
        self._store = self._connect_store(self._limit_s)
        self._store.set(self._key(self._name, self._plan.rank), "")

    def leave(self) -> None:
        """Record that this rank has finished."""
        if self._store is not None:
            self._store.set(f"left/{self._plan.rank}", "")

    def elapsed_s(self) -> float:
        """Return the seconds since the stage began."""
        return round(time.monotonic() - self._began, 4)

    def wait_for_all(self) -> None:
        """Wait until all ranks of this step have reached this stage. Raises StageFailed."""
        until = self._began + self._limit_s - 0.5  # before _enforce_limits would end the process
        keys = self._keys()
        while self._store is not None and not self._store.check(keys):
            if time.monotonic() > until:
                why = f"not all ranks arrived within {self.elapsed_s():.0f} s"
                raise StageFailed(why, self._missing())
            time.sleep(0.02)

    def _keys(self) -> list[str]:
        return [self._key(self._name, rank) for rank in range(self._processes)]

    def _missing(self) -> tuple[int, ...]:
        """Return the ranks of this step that have not reached this stage."""
        store = self._store
        return (
            ()
            if store is None
            else tuple(rank for rank, key in enumerate(self._keys()) if not store.check([key]))
        )

    def fail(self, why: str, missing: tuple[int, ...] = ()) -> None:
        """Report and share this rank's failure, collect the others', and end the process."""
        if not self._ending.acquire(blocking=False):
            time.sleep(60)  # another thread is ending this process
        own = SmokeTestFailure(
            rank=self._plan.rank,
            host=os.uname().nodename,
            stage=self._name,
            processes=self._processes,
            why=why,
            missing=missing or self._with_limit(self._missing, ()),
        )
        self._emit(own)  # even if the rest fails
        others: list[SmokeTestFailure] = (
            self._with_limit(lambda: self._exchange(own), []) if self._plan.world > 1 else []
        )
        self._exit([each for each in others if each.rank != own.rank])

    def _exchange(self, own: SmokeTestFailure) -> list[SmokeTestFailure]:
        store = self._store = self._store or self._connect_store(_REACH_S)
        store.set(f"failed/{own.rank}", msgspec.json.encode(own).decode())
        store.set(_ABORT, "")
        return self._failures(store)

    def _with_limit(self, call: Callable[[], _T], otherwise: _T) -> _T:
        """Return the result of a store call.

        ``otherwise`` if the store is gone or does not answer.
        """
        try:
            return call_with_timeout(call, _STORE_LIMIT_S)
        except (RuntimeError, CallTimedOut):
            return otherwise

    def _enforce_limits(self) -> None:
        """End the process when a stage exceeds its limit.

        Does not use the store, which may be blocked.
        """
        while True:
            time.sleep(_POLL_S)
            name, began = self._name, self._began
            if name and time.monotonic() - began > self._limit_s and name == self._name:
                self.fail(f"it did not end within {self._limit_s:g} s")

    def _watch_store(self) -> None:
        while True:
            time.sleep(_POLL_S)
            store = self._store
            try:
                if (
                    store is not None
                    and store.check([_ABORT])
                    and self._ending.acquire(blocking=False)
                ):
                    self._exit(self._failures(store))
            except RuntimeError:  # of the store
                self._store = None
                if self._name:
                    self.fail("the store, served by rank 0, is gone")

    def _failures(self, store: Store) -> list[SmokeTestFailure]:
        """Return the failures of all ranks; some arrive a moment later than the first."""
        time.sleep(_COLLECT_S)
        keys = [f"failed/{rank}" for rank in range(self._plan.world)]
        failures = [store.get(key) for key in keys if store.check([key])]
        return [msgspec.json.decode(each, type=SmokeTestFailure) for each in failures]

    def _exit(self, failures: list[SmokeTestFailure]) -> None:
        for each in failures:
            self._emit(each)
        self._with_limit(self.leave, None)
        os._exit(1)

    def _key(self, stage: str, rank: int) -> str:
        return f"{self._processes}/{stage}/{rank}"
