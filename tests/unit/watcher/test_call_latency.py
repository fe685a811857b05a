"""Latencies of collectives, from real trace files."""

from __future__ import annotations

import pytest

from holdfast.core import trace_file
from holdfast.core.rank_table import ProcessGroupInfo
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder.backends import CallDetails, PythonRecorder
from holdfast.watcher.call_latency import MAX_REPORTED, CallLatencies, measure_latencies
from holdfast.watcher.trace_reader import TraceReading

ALL_REDUCE, BROADCAST = (trace_file.OPERATIONS.index(name) for name in ("all_reduce", "broadcast"))
CALL = CallDetails(elements=12, dtype=0, shape=(12,), tensors=1, reduction=0)
GROUPS = {"0": ProcessGroupInfo("0", (0, 1), "default_pg")}


@pytest.fixture
def traces(tmp_path):
    """Two ranks with calls in two groups, one of them still in flight."""
    for rank in range(2):
        writer = TraceWriter(tmp_path / f"rank{rank}.trace", rank=rank, world_size=2, records=64)
        recorder = PythonRecorder(writer, "/nowhere/torch")
        for group, operation in (("0", ALL_REDUCE), ("0", ALL_REDUCE), ("tp", BROADCAST)):
            recorder.finish(recorder.record(group, operation, CALL))
        recorder.record("0", BROADCAST, CALL)
    return {rank: TraceReading(tmp_path / f"rank{rank}.trace") for rank in range(2)}


def test_each_operation_of_a_group_has_its_latency_over_the_ranks(traces):
    found = {(each.group, each.operation): each for each in measure_latencies(traces, GROUPS, 0.0)}
    assert {key: each.calls for key, each in found.items()} == {
        ("default_pg", "all_reduce"): 4,
        ("tp", "broadcast"): 2,
    }
    for each in found.values():
        assert 0 < each.shortest_s <= each.median_s <= each.longest_s


def test_older_calls_are_left_out(traces):
    now = traces[0].unix(int(traces[0].table()["completed"].max())) + 1
    assert measure_latencies(traces, GROUPS, now) == ()


def test_they_are_measured_again_after_some_seconds(traces):
    latencies, started = CallLatencies(), traces[0].header.started
    first = latencies.measure(traces, GROUPS, started + 1)
    assert first
    assert len(first) <= MAX_REPORTED
    assert latencies.measure({}, GROUPS, started + 2) is first
    assert latencies.measure({}, GROUPS, started + 12) == ()
