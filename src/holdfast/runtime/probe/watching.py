"""Watches a step from inside its process: a stage that takes too long ends it, and so does what another rank reports.

A thread with a connection of its own to the store: calls of torch that wait forever cannot be interrupted, and their
process can. Whoever fails writes down why, and the others, which would wait for half an hour, read it and end too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
from torch.distributed.distributed_c10d import Store

from holdfast.runtime.probe import Failure, Plan, Stage

#: Between two looks; and how long those that fail wait to hear what the others fail with.
_LOOK_S, _OTHERS_S, _REACH_S = 0.1, 0.7, 2.0
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
        threading.Thread(target=self._look_on, name="holdfast watch", daemon=True).start()

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
        until = self._began + self._limit_s - 0.5  # sooner than the watching thread would end it
        while missing := self._absent():
            if time.monotonic() > until:
                raise Trouble(f"not all had come after {self.elapsed_s():.0f} s", missing)
            time.sleep(0.02)

    def _absent(self) -> tuple[int, ...]:
        if self._store is None:
            return ()
        ranks = range(self._processes)
        return tuple(rank for rank in ranks if not self._store.check([self._key(self._name, rank)]))

    def fail(self, why: str, missing: tuple[int, ...] = ()) -> None:
        """Tell the others why this rank ends, hear why they do, and end."""
        if not self._ended.acquire(blocking=False):
            time.sleep(60)  # the other thread is ending this process
        own = Failure(
            rank=self._plan.rank, host=os.uname().nodename, stage=self._name, processes=self._processes, why=why,
            missing=missing,
        )  # fmt: skip
        others: list[Failure] = []
        if self._plan.world > 1:
            with suppress(RuntimeError):  # of the store: who kept it is gone, or cannot be reached
                self._store = self._store or self._reach(_REACH_S)
                self._store.set(f"failed/{own.rank}", msgspec.json.encode(own).decode())
                self._store.set(_ABORT, "")
                others = self._failures(self._store)
        self._exit([own, *(each for each in others if each.rank != own.rank)])

    def _look_on(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            name, began, store = self._name, self._began, self._store
            try:
                if store is not None and store.check([_ABORT]) and self._ended.acquire(blocking=False):
                    self._exit(self._failures(store))
                if name and time.monotonic() - began > self._limit_s and name == self._name:
                    self.fail(f"it did not end within {self._limit_s:g} s", self._absent())
            except RuntimeError:  # of the store
                self._store = None
                if name:
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
        with suppress(RuntimeError):
            self.left()
        os._exit(1)

    def _key(self, stage: str, rank: int) -> str:
        return f"{self._processes}/{stage}/{rank}"
