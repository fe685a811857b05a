"""Writes the live state of a job into its run folder, in a thread: that disk may be slow or hang.

A state that takes long to write makes the next one later, so that writing uses at most 5% of
a core (16,384 ranks; of 8 ranks it uses 0.1%).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import HoldfastError
from holdfast.core.findings import Finding
from holdfast.core.live_state import (
    MAX_SERIES_BYTES,
    LiveState,
    SeriesPoint,
    series_file,
    state_file,
)
from holdfast.watcher.agent_messages import StartWatching
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.live_columns import build_live_state, build_series_point

#: Maximum share of a core for writing.
MAX_SHARE = 0.05
#: Interval of the points of the series: at first every second, so that a short run has some, too.
SERIES_EVERY_S, SERIES_SHARE = 5.0, 0.04
#: Time over which step rates are measured.
RATE_WINDOW_S = 10.0
CLOSE_LIMIT_S = 0.5


class LiveWriter:
    """Writes at most one state every ``period_s`` seconds; 0 disables it."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._due = 0.0
        self._lock = threading.Condition()
        self._pending: tuple[StartWatching, JobSummary, tuple[Finding, ...], LiveState] | None = (
            None
        )
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-live", daemon=True)
        self._rates = StepRates()
        self._series: SeriesFile | None = None
        self._series_at = self._series_begun = 0.0

    def update(
        self, job: StartWatching, table: JobSummary, findings: Sequence[Finding], base: LiveState
    ) -> None:
        """Hand over the state of the job; ``base`` has the fields that the table lacks.

        Never blocks: if the last state is still being written, this one is skipped.
        """
        if (
            not self._period_s
            or time.monotonic() < self._due
            or not self._lock.acquire(blocking=False)
        ):
            return
        try:
            if self._pending is None and not self._closed:
                self._due = time.monotonic() + self._period_s
                self._pending = (job, table, tuple(findings), base)
                self._lock.notify()
                if self._thread.ident is None:
                    self._thread.start()
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the thread; a write in progress gets half a second."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_LIMIT_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._pending is not None or self._closed)
                pending = self._pending
            if pending is None:
                return
            begun = time.thread_time()
            with suppress(OSError, HoldfastError):  # the folder may be deleted, the disk full
                self._write(*pending)
            self._due = time.monotonic() + self._next_period(time.thread_time() - begun)
            with self._lock:
                self._pending = None

    def _next_period(self, cpu_s: float) -> float:
        return max(self._period_s, cpu_s / MAX_SHARE)

    def _write(
        self, job: StartWatching, table: JobSummary, findings: Sequence[Finding], base: LiveState
    ) -> None:
        begun = time.thread_time()
        folder = Path(job.run_dir)
        rates = self._rates.update(job.generation, table)
        state = build_live_state(table, rates, findings)
        state = replace(
            state,
            period_s=round(self._next_period((time.thread_time() - begun) * 2), 2),
            generation=job.generation,
            written_by=f"node {job.node} {job.agent}".strip(),
            job=job.job,
            stall_s=base.stall_s,
            notice=base.notice,
        )
        write_atomic(folder / state_file(job.node), msgspec.json.encode(state), durable=False)
        self._append_point(folder / series_file(job.node), state)

    def _append_point(self, path: Path, state: LiveState) -> None:
        """Append a point to the series if one is due."""
        now = time.monotonic()
        if self._series is None or self._series.path != path:
            self._series, self._series_begun, self._series_at = SeriesFile(path), now, float("-inf")
        if now - self._series_at >= min(SERIES_EVERY_S, SERIES_SHARE * (now - self._series_begun)):
            self._series_at = now
            self._series.append(build_series_point(state))


class StepRates:
    """Measures steps per second by rank, over RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._generation = -1
        self._counts: deque[tuple[float, dict[int, int]]] = deque()

    def update(self, generation: int, table: JobSummary) -> dict[int, float]:
        """Add the step counts of ``table`` and return the rates of ranks that count steps."""
        if generation != self._generation:
            self._generation = generation
            self._counts.clear()
        now = {state.rank: state.counted for state in table.ranks if state.counted}
        self._counts.append((table.time, now))
        while len(self._counts) > 2 and self._counts[1][0] <= table.time - RATE_WINDOW_S:
            self._counts.popleft()
        begun, before = self._counts[0]
        elapsed_s = table.time - begun
        if elapsed_s <= 0:
            return {}
        return {
            rank: round(max(count - before[rank], 0) / elapsed_s, 4)
            for rank, count in now.items()
            if rank in before
        }


class SeriesFile:
    """A bounded series of the whole run.

    When the file is full, every second point is deleted, and later points are half as frequent.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_SERIES_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._stride = self._skipped = 1

    def append(self, point: SeriesPoint) -> None:
        """Append a point. After the file was thinned out, only every 2nd, 4th… is written.

        Raises:
            OSError, MissingFile: the file cannot be written.
        """
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        line = msgspec.json.encode(point) + b"\n"
        with self.path.open("ab") as file:
            file.write(line)
            size = file.tell()
        if size + len(line) > self._max_bytes:
            lines = self.path.read_bytes().splitlines(keepends=True)
            write_atomic(self.path, b"".join(lines[::2]), durable=False)
            self._stride *= 2
