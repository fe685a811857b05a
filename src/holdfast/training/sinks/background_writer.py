"""Isolate sinks from training: each writes in its own thread, from a queue that never blocks."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.text import format_duration, pluralize
from holdfast.training.process_rank import is_rank_zero
from holdfast.training.sinks import Sink

#: A sink is disabled after this many failures in a row, or once a write takes this long.
MAX_FAILURES = 5
WRITE_TIMEOUT_S = 120.0
#: Maximum queued writes per sink; further ones are dropped and counted.
MAX_QUEUED = 1000
CLOSE_TIMEOUT_S = 30.0

_log = logging.getLogger("holdfast.sinks")
_Metrics = Mapping[str, float]


@suggest_keywords
def guarded(
    sinks: Iterable[Sink],
    *,
    most_failures: int = MAX_FAILURES,
    write_limit_s: float = WRITE_TIMEOUT_S,
    most_waiting: int = MAX_QUEUED,
) -> BackgroundSink:
    """Return one sink that writes to all ``sinks``, on rank 0 only; never raises nor blocks.

    Each sink has its own thread and queue. A failing sink is logged once, and disabled after
    ``most_failures`` failures in a row or once a write takes longer than ``write_limit_s`` seconds;
    training continues.
    """
    return BackgroundSink(
        [_SinkWorker(sink, most_failures, write_limit_s, most_waiting) for sink in sinks]
    )


class BackgroundSink:
    """The sink that :func:`guarded` returns."""

    def __init__(self, workers: list[_SinkWorker]) -> None:
        self._workers = workers
        self._closed = False
        self._skipped_metrics: set[str] = set()
        self._pid = os.getpid()
        for worker in workers:
            worker.opened = self._close_first
        atexit.register(self.close)

    @property
    def lost(self) -> int:
        """Return the number of writes that did not reach a sink."""
        return sum(worker.lost for worker in self._workers)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Queue the values and return; None and non-numbers are skipped. Never raises.

        Values are read immediately: for a GPU tensor this waits for the GPU.
        """
        if self._closed or not self._workers or not is_rank_zero():
            return
        values = dict(self._numbers(metrics))
        for worker in self._workers:
            worker.offer(int(step), values)

    def close(self, limit_s: float = CLOSE_TIMEOUT_S) -> None:
        """Finish queued writes within ``limit_s`` seconds; log what was lost. Never raises.

        Called automatically at exit.
        """
        atexit.unregister(self.close)
        if self._closed or os.getpid() != self._pid:  # a forked child has no threads
            return
        self._closed = True
        deadline = time.monotonic() + limit_s
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join(deadline - time.monotonic())

    def _close_first(self) -> None:
        """Re-register at exit, to run before the client's own handler closes it."""
        if not self._closed:
            atexit.unregister(self.close)
            atexit.register(self.close)

    def _numbers(self, metrics: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
        for name, value in metrics.items():
            if value is None:
                continue
            try:
                yield str(name), float(value)
            except Exception as error:  # noqa: BLE001 - no value may stop training
                if (
                    len(self._skipped_metrics) < MAX_QUEUED
                    and str(name) not in self._skipped_metrics
                ):
                    self._skipped_metrics.add(str(name))
                    _log.warning("metric %r is skipped: not a number: %s", name, _first_line(error))


class _SinkWorker:
    """One sink, its queue and its thread."""

    def __init__(
        self, sink: Sink, most_failures: int, write_limit_s: float, most_waiting: int
    ) -> None:
        self._sink, self._name = sink, type(sink).__name__
        self._most_failures, self._limit_s, self._most_waiting = (
            most_failures,
            write_limit_s,
            most_waiting,
        )
        self._queue: deque[tuple[int, _Metrics]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = self._disabled = self._logged = False
        self._busy_since = 0.0
        self._offered = self._written = 0
        #: Called after the first write.
        self.opened: Callable[[], None] = lambda: None

    @property
    def lost(self) -> int:
        with self._changed:
            waiting = 0 if self._disabled else len(self._queue) + bool(self._busy_since)
            return self._offered - self._written - waiting

    def offer(self, step: int, values: _Metrics) -> None:
        """Queue one write, unless the queue is full."""
        with self._changed:
            self._offered += 1
            self._check_write_time()
            if self._disabled:
                return
            if len(self._queue) >= self._most_waiting:
                self._log_once(
                    f"is too slow: {pluralize(len(self._queue), 'write')} queued, dropping new ones"
                )
                return
            self._queue.append((step, values))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"holdfast {self._name}", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Accept no more writes."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, limit_s: float) -> None:
        """Wait until all writes are done; log how many were lost."""
        deadline = time.monotonic() + limit_s
        while self._thread is not None and self._thread.is_alive():
            with self._changed:
                self._check_write_time()
                if self._disabled or time.monotonic() >= deadline:
                    break
            self._thread.join(0.02)
        with self._changed:
            lost = self._offered - self._written
            if lost:
                _log.warning(
                    "%s lost %s of %s", self._name, f"{lost:,}", pluralize(self._offered, "write")
                )

    def _check_write_time(self) -> None:
        """Disable the sink if one write takes too long; its thread may never return."""
        if (
            self._busy_since
            and not self._disabled
            and time.monotonic() - self._busy_since > self._limit_s
        ):
            self._disable(f"spent more than {format_duration(self._limit_s)} on one write")

    def _run(self) -> None:
        failures = 0
        while (item := self._next()) is not None:
            error = _run_caught(lambda item=item: self._sink.write(*item))  # type: ignore[misc]
            with self._changed:
                self._busy_since = 0.0
                self._written += error is None
                first = self._written == 1 and error is None
                failures = 0 if error is None else failures + 1
                if error is not None:
                    self._log_once(f"failed; training continues: {_first_line(error)}")
                if failures >= self._most_failures:
                    self._disable(f"failed {failures} times in a row")
            if first:
                self.opened()
        error = _run_caught(self._sink.close)
        if error is not None:
            with self._changed:
                self._log_once(f"could not be closed: {_first_line(error)}")

    def _next(self) -> tuple[int, _Metrics] | None:
        """Return the next write; None at the end."""
        with self._changed:
            while not (self._queue or self._stopping or self._disabled):
                self._changed.wait()
            if self._disabled or not self._queue:
                return None
            self._busy_since = time.monotonic()
            return self._queue.popleft()

    def _disable(self, why: str) -> None:
        if not self._disabled:
            self._disabled = True
            self._queue.clear()
            _log.warning("%s %s; it is disabled", self._name, why)

    def _log_once(self, what: str) -> None:
        """Log one message per sink, not per write."""
        if not self._logged:
            self._logged = True
            _log.warning("%s %s", self._name, what)


def _run_caught(action: Callable[[], None]) -> BaseException | None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - sys.exit must not end the thread silently
        return error
    return None


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
