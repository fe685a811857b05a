"""Measures how long recent collectives took on the ranks of this node, from their trace files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from holdfast.core import trace_file
from holdfast.core.live_state import CallLatency
from holdfast.core.rank_table import ProcessGroupInfo
from holdfast.watcher.live_columns import NO_GROUPS, group_label
from holdfast.watcher.trace_reader import TraceReading

#: Interval between measurements, and the time of the calls that each covers.
EVERY_S, WINDOW_S = 10.0, 15.0
#: Latencies that a node reports: those with the longest total.
MAX_REPORTED = 16


class CallLatencies:
    """The latencies of the local ranks, measured again every EVERY_S seconds."""

    def __init__(self) -> None:
        self._due = 0.0
        self.latest: tuple[CallLatency, ...] = ()

    def measure(
        self,
        traces: Mapping[int, TraceReading],
        groups: Mapping[str, ProcessGroupInfo],
        now: float,
    ) -> tuple[CallLatency, ...]:
        """Return the newest latencies; ``now`` is in Unix seconds."""
        if now >= self._due:
            self._due = now + EVERY_S
            self.latest = measure_latencies(traces, groups, now - WINDOW_S)
        return self.latest


def measure_latencies(
    traces: Mapping[int, TraceReading], groups: Mapping[str, ProcessGroupInfo], since: float
) -> tuple[CallLatency, ...]:
    """Return the latencies of the calls that completed since then, the longest total first.

    Calls of backends that do not report completion, and of the store, are left out.
    """
    durations: dict[tuple[str, str], list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = (
        defaultdict(list)
    )
    for trace in traces.values():
        rows = trace.completed_since(since)
        seconds = (rows["completed"] - rows["entered"]).astype(np.float64) / 1e9
        keys = rows["group"].astype(np.int64) << 16 | rows["operation"]
        for key in np.unique(keys):
            name = trace.notes.names.get(int(key) >> 16, "")
            if name in NO_GROUPS:
                continue
            operation = trace_file.OPERATIONS[int(key) & 0xFFFF]
            label = group_label(name, groups.get(name))
            durations[label, operation].append(seconds[keys == key])
    latencies = [
        CallLatency(
            group,
            operation,
            sum(map(len, of_ranks)),
            round(min(float(np.median(seconds)) for seconds in of_ranks), 7),
            round(float(np.median(np.concatenate(of_ranks))), 7),
            round(max(float(np.percentile(seconds, 99)) for seconds in of_ranks), 7),
        )
        for (group, operation), of_ranks in durations.items()
    ]
    latencies.sort(key=lambda each: -each.calls * each.median_s)
    return tuple(latencies[:MAX_REPORTED])
