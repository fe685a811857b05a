"""Watches a step from inside its process: a stage that takes too long ends it, and so does what another rank reports.

A thread with a connection of its own to the store: calls of torch that wait forever cannot be interrupted, and their
process can. Whoever fails writes down why, and the others, which would wait for half an hour, read it and end too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from torch.distributed.distributed_c10d import Store

from holdfast.runtime.comm.aside import Silent, aside
from holdfast.runtime.probe import Failure, Plan, Stage

#: Between two looks; and how long those that fail wait to hear what the others fail with.
_LOOK_S, _OTHERS_S = 0.1, 0.7
#: For connecting to the store in the end, and for all that is asked of it then.
_REACH_S, _STORE_LIMIT_S = 2.0, 4.0
_T = TypeVar("_T")
_ABORT = "abort"


class Trouble(Exception):
    """A stage failed; ``missing`` are the ranks that did not come to it."""

    def __init__(self, why: str, missing: tuple[int, ...] = ()) -> None:
        super().__init__(why)
        self.missing = missing


class Watch:
    """The stages of one step of ``processes`` ranks. ``say`` writes an entry where the command reads it.

    ``reach`` connects to the store within so many seconds: who fails alone, without it, tells the others too.
    """

    def __init__(
        self, plan: Plan, processes: int, say: Callable[[Stage | Failure], None], reach: Callable[[float], Store]
    ) -> None:
        self._plan, self._processes, self._say, self._reach = plan, processes, say, reach
        self._name, self._began, self._limit_s = "", 0.0, plan.limit_s
        self._ended = threading.Lock()  # taken once, by whoever ends the process
        self._store: Store | None = None
        for watch in (self._keep_time, self._listen):
            threading.Thread(target=watch, name="holdfast watch", daemon=True).start()

    def begin(self, name: str, limit_s: float | None = None) -> None:
        """A stage begins, and its time."""
        self._limit_s = limit_s or self._plan.limit_s
        self._began, self._name = time.monotonic(), name
        if self._store is not None:
            self._store.set(self._key(name, self._plan.rank), "")

    def done(self, entry: Stage) -> None:
        """It ended well."""
        self._name = ""
        self._say(entry)

    def connect(self) -> None:
        """From now on the others are heard. Raises RuntimeError: the store cannot be reached."""
        self._store = self._reach(self._limit_s)
        self._store.set(self._key(self._name, self._plan.rank), "")

    def left(self) -> None:
        """All is over for this rank."""
        if self._store is not None:
            self._store.set(f"left/{self._plan.rank}", "")

    def elapsed_s(self) -> float:
        """Since the stage began."""
        return round(time.monotonic() - self._began, 4)

    def meet(self) -> None:
        """Wait until all ranks of this step have come to this stage. Raises Trouble: they have not."""
        until = self._began + self._limit_s - 0.5  # sooner than the thread that keeps the time would end it
        keys = self._keys()
        while self._store is not None and not self._store.check(keys):
            if time.monotonic() > until:
                raise Trouble(f"not all had come after {self.elapsed_s():.0f} s", self._absent())
            time.sleep(0.02)

    def _keys(self) -> list[str]:
        return [self._key(self._name, rank) for rank in range(self._processes)]

    def _absent(self) -> tuple[int, ...]:
        """The ranks of this step that have not come to this stage."""
        store = self._store
        return () if store is None else tuple(rank for rank, key in enumerate(self._keys()) if not store.check([key]))

    def fail(self, why: str, missing: tuple[int, ...] = ()) -> None:
        """Say why this rank ends, tell the others, hear why they do, and end."""
        if not self._ended.acquire(blocking=False):
            time.sleep(60)  # another thread is ending this process
        own = Failure(
            rank=self._plan.rank, host=os.uname().nodename, stage=self._name, processes=self._processes, why=why,
            missing=missing or self._aside(self._absent, ()),
        )  # fmt: skip
        self._say(own)  # whatever comes of the rest
        others: list[Failure] = self._aside(lambda: self._exchange(own), []) if self._plan.world > 1 else []
        self._exit([each for each in others if each.rank != own.rank])

    def _exchange(self, own: Failure) -> list[Failure]:
        store = self._store = self._store or self._reach(_REACH_S)
        store.set(f"failed/{own.rank}", msgspec.json.encode(own).decode())
        store.set(_ABORT, "")
        return self._failures(store)

    def _aside(self, ask: Callable[[], _T], otherwise: _T) -> _T:
        """What the store gives; ``otherwise`` where it is gone, cannot be reached, or does not answer."""
        try:
            return aside(ask, _STORE_LIMIT_S)
        except (RuntimeError, Silent):
            return otherwise

    def _keep_time(self) -> None:
        """Needs nothing of the store, which may not answer."""
        while True:
            time.sleep(_LOOK_S)
            name, began = self._name, self._began
            if name and time.monotonic() - began > self._limit_s and name == self._name:
                self.fail(f"it did not end within {self._limit_s:g} s")

    def _listen(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            store = self._store
            try:
                if store is not None and store.check([_ABORT]) and self._ended.acquire(blocking=False):
                    self._exit(self._failures(store))
            except RuntimeError:  # of the store
                self._store = None
                if self._name:
                    self.fail("the store, which rank 0 keeps, is gone")

    def _failures(self, store: Store) -> list[Failure]:
        """What all ranks have failed with; some need a moment longer than the first."""
        time.sleep(_OTHERS_S)
        keys = [f"failed/{rank}" for rank in range(self._plan.world)]
        told = [store.get(key) for key in keys if store.check([key])]
        return [msgspec.json.decode(each, type=Failure) for each in told]

    def _exit(self, failures: list[Failure]) -> None:
        for each in failures:
            self._say(each)
        self._aside(self.left, None)
        os._exit(1)

    def _key(self, stage: str, rank: int) -> str:
        return f"{self._processes}/{stage}/{rank}"
