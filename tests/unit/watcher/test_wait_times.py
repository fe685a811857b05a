"""The time in collectives is measured per slice, from real trace files."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from holdfast.core import trace_file
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder.backends import CallDetails, PythonRecorder
from holdfast.watcher.trace_reader import TraceReading
from holdfast.watcher.wait_times import SLICES, WaitTimes, measure_slices, union_length

ALL_REDUCE, BROADCAST, SEND = (
    trace_file.OPERATIONS.index(name) for name in ("all_reduce", "broadcast", "send")
)
CALL = CallDetails(elements=12, dtype=0, shape=(12,), tensors=1, reduction=0)
SLICE_S = 0.05


@pytest.fixture
def trace(tmp_path: Path) -> TraceWriter:
    return TraceWriter(tmp_path / "rank0.trace", rank=0, world_size=2, records=64)


def work(trace: TraceWriter, *operations: int) -> PythonRecorder:
    """Record overlapping pairs of 30-ms calls, 20 ms apart."""
    time.sleep(2 * SLICE_S)  # skip the slice of the start
    recorder = PythonRecorder(trace, "/nowhere/torch")
    for first, second in zip(operations[::2], operations[1::2], strict=True):
        time.sleep(0.02)
        one = recorder.record("0", first, CALL)
        time.sleep(0.02)
        other = recorder.record("0", second, CALL)
        time.sleep(0.01)
        recorder.finish(one)
        time.sleep(0.02)
        recorder.finish(other)
    return recorder


def slices(trace: TraceReading) -> range:
    """Return the slices between the start of the trace and now."""
    return range(int(trace.header.started / SLICE_S) + 1, int(time.time() / SLICE_S))


def test_overlapping_intervals_count_once() -> None:
    assert union_length(
        np.array([3.0, 0.0, 1.0, 8.0]), np.array([4.0, 2.0, 3.5, 9.0])
    ) == pytest.approx(5.0)
    assert union_length(np.array([]), np.array([])) == 0.0


def test_each_slice_has_its_wait_fraction(trace: TraceWriter) -> None:
    recorder = work(trace, *[ALL_REDUCE] * 6)
    recorder.record("0", ALL_REDUCE, CALL)  # this one does not complete
    time.sleep(2 * SLICE_S)
    read, now = TraceReading(trace.path), time.time()
    found = measure_slices(read, slices(read), SLICE_S, now)
    calls = read.recent(64)
    assert len(found) >= 6
    for each in found:
        at = (each.number + np.linspace(0, 1, 2001)) * SLICE_S
        within = np.any(
            [(call.entered <= at) & (at < (call.completed or now)) for call in calls], axis=0
        )
        assert each.waited == pytest.approx(within.mean(), abs=0.01)
        assert each.calls == sum(int(call.entered / SLICE_S) == each.number for call in calls)
    assert found[-1].waited == pytest.approx(1.0)
    assert sum(each.calls for each in found) == 7


@pytest.mark.parametrize("other", [BROADCAST, SEND])
def test_point_to_point_and_broadcast_are_not_measured(trace: TraceWriter, other: int) -> None:
    work(trace, ALL_REDUCE, ALL_REDUCE, other, other, ALL_REDUCE, ALL_REDUCE)
    time.sleep(SLICE_S)
    read = TraceReading(trace.path)
    found = measure_slices(read, slices(read), SLICE_S, time.time())
    alien = {int(call.entered / SLICE_S) for call in read.recent(64) if call.name != "all_reduce"}
    if other == SEND:  # a pipeline
        assert alien
        assert not alien & {each.number for each in found}
    else:
        assert sum(each.calls for each in found) == 4


def test_slices_with_lost_calls_are_skipped(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "rank0.trace", rank=0, world_size=2, records=4)
    work(trace, *[ALL_REDUCE] * 8)
    time.sleep(SLICE_S)
    read = TraceReading(trace.path)
    kept = read.recent(8)
    assert len(kept) == 4
    found = measure_slices(read, slices(read), SLICE_S, time.time())
    assert all(each.number * SLICE_S >= kept[0].entered for each in found)


def test_slices_in_a_phase_are_skipped(trace: TraceWriter) -> None:
    work(trace, ALL_REDUCE, ALL_REDUCE)
    trace.phase("evaluation", 60.0)
    time.sleep(3 * SLICE_S)
    read = TraceReading(trace.path)
    since = read.step().phase_since
    found = measure_slices(read, slices(read), SLICE_S, time.time())
    assert found
    assert all((each.number + 1) * SLICE_S <= since for each in found)


def test_the_newest_slices_are_kept(trace: TraceWriter) -> None:
    waiting, read = WaitTimes(SLICES * SLICE_S), TraceReading(trace.path)
    waiting.measure({0: read}, time.time())
    assert waiting.slices(0) == ()
    recorder = PythonRecorder(trace, "/nowhere/torch")
    until = time.monotonic() + 1.5 * SLICES * SLICE_S
    while time.monotonic() < until:
        recorder.finish(recorder.record("0", ALL_REDUCE, CALL))
        time.sleep(0.03)
        waiting.measure({0: read}, time.time())
    numbers = [each.number for each in waiting.slices(0)]
    assert len(numbers) <= SLICES
    assert numbers == sorted(set(numbers))
    assert time.time() / SLICE_S - numbers[-1] < 60
    assert WaitTimes(0).slices(0) == ()
