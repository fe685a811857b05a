"""Keeps sinks away from training: each writes in a thread of its own, from a queue that never makes anybody wait."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist

from holdfast import settings
from holdfast.report.text import duration, plural
from holdfast.runtime.sinks import Sink

#: A sink is left out after so many failures in a row, or once a write takes so long.
MOST_FAILURES = 5
WRITE_LIMIT_S = 120.0
#: Writes that wait for a sink; what comes when so many wait is lost, and counted.
MOST_WAITING = 1000
CLOSE_LIMIT_S = 30.0

_log = logging.getLogger("holdfast.sinks")
_Metrics = Mapping[str, float]


def guarded(
    sinks: Iterable[Sink], *, most_failures: int = MOST_FAILURES, write_limit_s: float = WRITE_LIMIT_S,
    most_waiting: int = MOST_WAITING,
) -> Guarded:  # fmt: skip
    """One sink that writes to all of ``sinks``, on rank 0 alone, and never fails nor waits.

    Each has a thread and a queue of its own. What fails is said once in the log, and is left out after
    ``most_failures`` in a row or once a write takes longer than ``write_limit_s`` seconds; training goes on.
    """
    return Guarded([_Lane(each, most_failures, write_limit_s, most_waiting) for each in sinks])


class Guarded:
    """What :func:`guarded` gives: a sink itself."""

    def __init__(self, lanes: list[_Lane]) -> None:
        self._lanes = lanes
        self._closed = False
        self._strange: set[str] = set()
        self._pid = os.getpid()
        for lane in lanes:
            lane.opened = self._close_first
        atexit.register(self.close)

    @property
    def lost(self) -> int:
        """Writes that did not reach a sink, over all of them."""
        return sum(lane.lost for lane in self._lanes)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Hand the values on and return at once; None, and what is no number, counts as absent. Never raises.

        Values are read now: of a tensor on a GPU, that waits for the GPU.
        """
        if self._closed or not self._lanes or not _is_first():
            return
        values = dict(self._numbers(metrics))
        for lane in self._lanes:
            lane.offer(int(step), values)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Have everything written that waits, for no longer than ``limit_s`` seconds; say what was lost. Never raises.

        Called by itself when Python ends.
        """
        atexit.unregister(self.close)
        if self._closed or os.getpid() != self._pid:  # a forked child has none of the threads
            return
        self._closed = True
        until = time.monotonic() + limit_s
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.join(until - time.monotonic())

    def _close_first(self) -> None:
        """Be called at the end before what a client registered when it was opened: that would close it before us."""
        if not self._closed:
            atexit.unregister(self.close)
            atexit.register(self.close)

    def _numbers(self, metrics: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
        for name, value in metrics.items():
            if value is None:
                continue
            try:
                yield str(name), float(value)
            except Exception as error:  # noqa: BLE001 - whatever a value does when it is read, training goes on
                if len(self._strange) < MOST_WAITING and str(name) not in self._strange:
                    self._strange.add(str(name))
                    _log.warning("metric %r is left out, as it is no number: %s", name, _first_line(error))


class _Lane:
    """One sink, its queue and its thread."""

    def __init__(self, sink: Sink, most_failures: int, write_limit_s: float, most_waiting: int) -> None:
        self._sink, self._name = sink, type(sink).__name__
        self._most_failures, self._limit_s, self._most_waiting = most_failures, write_limit_s, most_waiting
        self._queue: deque[tuple[int, _Metrics]] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = self._left_out = self._told = False
        self._busy_since = 0.0
        self._offered = self._written = 0
        #: Called when the first write is over.
        self.opened: Callable[[], None] = lambda: None

    @property
    def lost(self) -> int:
        with self._news:
            waiting = 0 if self._left_out else len(self._queue) + bool(self._busy_since)
            return self._offered - self._written - waiting

    def offer(self, step: int, values: _Metrics) -> None:
        """Queue one write, unless too many wait."""
        with self._news:
            self._offered += 1
            self._mind_time()
            if self._left_out:
                return
            if len(self._queue) >= self._most_waiting:
                self._tell(f"is too slow: {plural(len(self._queue), 'write')} wait for it, and what comes now is lost")
                return
            self._queue.append((step, values))
            self._news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"holdfast {self._name}", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """No more will come."""
        with self._news:
            self._ending = True
            self._news.notify()

    def join(self, limit_s: float) -> None:
        """Wait until all is written, and say what was not."""
        until = time.monotonic() + limit_s
        while self._thread is not None and self._thread.is_alive():
            with self._news:
                self._mind_time()
                if self._left_out or time.monotonic() >= until:
                    break
            self._thread.join(0.02)
        with self._news:
            lost = self._offered - self._written
            if lost:
                _log.warning("%s lost %s of %s", self._name, f"{lost:,}", plural(self._offered, "write"))

    def _mind_time(self) -> None:
        """Leave the sink out where it has been at one write for too long; its thread may never come back."""
        if self._busy_since and not self._left_out and time.monotonic() - self._busy_since > self._limit_s:
            self._leave_out(f"takes longer than {duration(self._limit_s)} over one write")

    def _work(self) -> None:
        failures = 0
        while (item := self._next()) is not None:
            error = _attempt(lambda item=item: self._sink.write(*item))  # type: ignore[misc]
            with self._news:
                self._busy_since = 0.0
                self._written += error is None
                first = self._written == 1 and error is None
                failures = 0 if error is None else failures + 1
                if error is not None:
                    self._tell(f"failed, and training goes on: {_first_line(error)}")
                if failures >= self._most_failures:
                    self._leave_out(f"failed {failures} times in a row")
            if first:
                self.opened()
        error = _attempt(self._sink.close)
        if error is not None:
            with self._news:
                self._tell(f"could not be closed: {_first_line(error)}")

    def _next(self) -> tuple[int, _Metrics] | None:
        """The next write; None once there will be none."""
        with self._news:
            while not (self._queue or self._ending or self._left_out):
                self._news.wait()
            if self._left_out or not self._queue:
                return None
            self._busy_since = time.monotonic()
            return self._queue.popleft()

    def _leave_out(self, why: str) -> None:
        if not self._left_out:
            self._left_out = True
            self._queue.clear()
            _log.warning("%s %s: nothing more is written to it", self._name, why)

    def _tell(self, what: str) -> None:
        """One sentence a sink, not one a write."""
        if not self._told:
            self._told = True
            _log.warning("%s %s", self._name, what)


def _attempt(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - also what calls sys.exit must not end the thread unseen
        return error
    return None


def _is_first() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not settings.read("RANK").value


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
