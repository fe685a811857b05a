"""Measures the time that each rank waits in collectives, to find the rank that they wait for.

In a collective in which all ranks wait for the last, the last waits least. Only durations on each
rank's own clock count, so clock offsets between hosts and overlapping collectives do not matter.
Time is divided into slices, to distinguish one long stall from a rank that is late repeatedly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.core import trace_file
from holdfast.core.rank_table import NO_EXTRA_WORK, ExtraWork, GroupTiming, WaitSlice
from holdfast.watcher.call_timings import IS_SYNCHRONIZING, measure_timings
from holdfast.watcher.extra_work import add_phases, measure_extra_work
from holdfast.watcher.trace_reader import TraceReading

#: Slices per window.
SLICES = 12
#: Interval of the samples of phases: that of the watcher.
SAMPLE_S = 0.5


class WaitTimes:
    """Wait times of the local ranks of one generation, over ``window_s`` seconds; 0 disables it."""

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / SLICES
        self._measured: int | None = None
        self._slices: dict[int, deque[WaitSlice]] = {}
        self._host_seconds: dict[int, deque[tuple[float, float, float]]] = {}
        self._extra_work: dict[int, ExtraWork] = {}
        self._in_phase: dict[int, deque[bool]] = {}
        self._samples = max(int(window_s / SAMPLE_S), 1)
        #: The newest timings of collectives, for the leader.
        self.timings: tuple[GroupTiming, ...] = ()

    def measure(self, traces: Mapping[int, TraceReading], now: float) -> None:
        """Measure the slices that ended since the last call. ``now`` is in Unix seconds."""
        if self._slice_s <= 0:
            return
        ended = int(now / self._slice_s) - 1
        if self._measured is None:  # the current slice began before this generation
            self._measured = ended
        if ended <= self._measured:
            return
        numbers = range(max(self._measured + 1, ended - SLICES + 1), ended + 1)
        self._measured = ended
        observed = []
        for rank, trace in traces.items():
            slices = self._slices.setdefault(rank, deque(maxlen=SLICES))
            rows = trace.table(now - (SLICES + 1) * self._slice_s)
            slices.extend(measure_slices(trace, numbers, self._slice_s, now, rows))
            host_seconds = self._host_seconds.setdefault(rank, deque(maxlen=SLICES + 1))
            host_seconds.append((now, *trace.host_seconds()))
            self._extra_work[rank] = _extra_work(trace, rows, now - SLICES * self._slice_s)
            observed.append((rank, trace, rows))
        self.timings = measure_timings(observed, now - SLICES * self._slice_s)

    def slices(self, rank: int) -> tuple[WaitSlice, ...]:
        """Return the newest slices of ``rank``, oldest first."""
        return tuple(self._slices.get(rank, ()))

    def sample_phase(self, rank: int, *, in_phase: bool) -> None:
        """Note whether the rank is in a phase of its script now."""
        samples = self._in_phase.setdefault(rank, deque(maxlen=self._samples))
        samples.append(in_phase)

    def extra_work(self, rank: int) -> ExtraWork:
        """Return what the rank does regularly besides the steps."""
        samples = self._in_phase.get(rank, ())
        in_phase = sum(samples) / len(samples) if samples else 0.0
        return add_phases(self._extra_work.get(rank, NO_EXTRA_WORK), in_phase)

    def host_shares(self, rank: int) -> tuple[float, float]:
        """Return the fractions of the window in the data loader and in garbage collection."""
        samples = self._host_seconds.get(rank)
        if samples is None or len(samples) < 2:
            return 0.0, 0.0
        first, last = samples[0], samples[-1]
        elapsed_s = last[0] - first[0]
        return (
            round((last[1] - first[1]) / elapsed_s, 4),
            round((last[2] - first[2]) / elapsed_s, 4),
        )


def _extra_work(trace: TraceReading, rows: np.ndarray[Any, Any], since: float) -> ExtraWork:
    """Return the extra work of a rank since a time, by its collectives that completed."""
    kept = IS_SYNCHRONIZING[rows["operation"]] & (rows["completed"] > 0)
    begins, ends = (
        (rows[name][kept].astype(np.float64) + trace.header.offset_ns) / 1e9
        for name in ("entered", "completed")
    )
    recent = begins >= since
    return measure_extra_work(begins[recent], ends[recent])


def measure_slices(
    trace: TraceReading,
    numbers: range,
    slice_s: float,
    now: float,
    rows: np.ndarray[Any, Any] | None = None,
) -> list[WaitSlice]:
    """Return the slices of one rank, without those that its ring lost or that lie in a phase."""
    rows, step = trace.table() if rows is None else rows, trace.step()
    if not trace.begun:
        return []
    begins = (rows["entered"].astype(np.float64) + trace.header.offset_ns) / 1e9
    oldest = trace.complete_since()
    ends = np.where(
        rows["completed"] > 0,
        (rows["completed"].astype(np.float64) + trace.header.offset_ns) / 1e9,
        now,
    )
    synchronizing = IS_SYNCHRONIZING[rows["operation"]]
    uncertain = (rows["flags"] & trace_file.FLAG_NO_COMPLETION) != 0
    sends = trace_file.POINT_TO_POINT
    point_to_point = (rows["operation"] >= sends[0]) & (rows["operation"] <= sends[-1])
    slices = []
    for number in numbers:
        first, last = number * slice_s, (number + 1) * slice_s
        if oldest > first or (step.phase and step.phase_since < last):
            continue
        within = (begins >= first) & (begins < last)
        # Pipeline stages are late by design, and NCCL does not report completion.
        if np.any(within & (point_to_point | (uncertain & synchronizing))):
            continue
        spans = synchronizing & (begins < last) & (ends > first)
        waited_s = union_length(
            np.clip(begins[spans], first, last), np.clip(ends[spans], first, last)
        )
        calls = int(np.count_nonzero(within & synchronizing))
        slices.append(WaitSlice(number, round(waited_s / slice_s, 4), calls))
    return slices


def union_length(begins: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> float:
    """Return the length of the union of intervals."""
    if not len(begins):
        return 0.0
    order = np.argsort(begins)
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    starts = np.maximum(begins[1:], reached[:-1])
    return float(reached[0] - begins[0] + np.clip(reached[1:] - starts, 0.0, None).sum())
