"""Waiting in collectives is measured slice by slice, from real boxes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from holdfast import blackbox
from holdfast.blackbox import BoxWriter
from holdfast.facts.boxes import Box
from holdfast.facts.waiting import SLICES, Waiting, covered, measured
from holdfast.runtime.recorder.pens import Call, PythonPen

ALL_REDUCE, BROADCAST, SEND = (blackbox.OPERATIONS.index(name) for name in ("all_reduce", "broadcast", "send"))
CALL = Call(elements=12, dtype=0, shape=(12,), tensors=1, reduction=0)
SLICE_S = 0.05


@pytest.fixture
def box(tmp_path: Path) -> BoxWriter:
    return BoxWriter(tmp_path / "rank0.box", rank=0, world_size=2, records=64)


def work(box: BoxWriter, *operations: int) -> PythonPen:
    """Calls of 30 ms, each second one of which begins while the one before is under way, and 20 ms between two."""
    time.sleep(2 * SLICE_S)  # the first slice lies behind the start
    pen = PythonPen(box, "/nowhere/torch")
    for first, second in zip(operations[::2], operations[1::2], strict=True):
        time.sleep(0.02)
        one = pen.record("0", first, CALL)
        time.sleep(0.02)
        other = pen.record("0", second, CALL)
        time.sleep(0.01)
        pen.finish(one)
        time.sleep(0.02)
        pen.finish(other)
    return pen


def slices(box: Box) -> range:
    """Those that lie within the life of the box until now."""
    return range(int(box.header.started / SLICE_S) + 1, int(time.time() / SLICE_S))


def test_intervals_that_overlap_count_once() -> None:
    assert covered(np.array([3.0, 0.0, 1.0, 8.0]), np.array([4.0, 2.0, 3.5, 9.0])) == pytest.approx(5.0)
    assert covered(np.array([]), np.array([])) == 0.0


def test_each_slice_has_its_part_of_the_waiting(box: BoxWriter) -> None:
    pen = work(box, *[ALL_REDUCE] * 6)
    pen.record("0", ALL_REDUCE, CALL)  # and one that goes on
    time.sleep(2 * SLICE_S)
    read, now = Box(box.path), time.time()
    found = measured(read, slices(read), SLICE_S, now)
    calls = read.recent(64)
    assert len(found) >= 6
    for each in found:
        at = (each.number + np.linspace(0, 1, 2001)) * SLICE_S
        within = np.any([(call.entered <= at) & (at < (call.completed or now)) for call in calls], axis=0)
        assert each.waited == pytest.approx(within.mean(), abs=0.01)
        assert each.calls == sum(int(call.entered / SLICE_S) == each.number for call in calls)
    assert found[-1].waited == pytest.approx(1.0)
    assert sum(each.calls for each in found) == 7


@pytest.mark.parametrize("other", [BROADCAST, SEND])
def test_what_is_late_by_design_is_not_waiting(box: BoxWriter, other: int) -> None:
    work(box, ALL_REDUCE, ALL_REDUCE, other, other, ALL_REDUCE, ALL_REDUCE)
    time.sleep(SLICE_S)
    read = Box(box.path)
    found = measured(read, slices(read), SLICE_S, time.time())
    alien = {int(call.entered / SLICE_S) for call in read.recent(64) if call.name != "all_reduce"}
    if other == SEND:  # a pipeline
        assert alien
        assert not alien & {each.number for each in found}
    else:
        assert sum(each.calls for each in found) == 4


def test_a_slice_of_which_the_ring_has_lost_calls_says_nothing(tmp_path: Path) -> None:
    box = BoxWriter(tmp_path / "rank0.box", rank=0, world_size=2, records=4)
    work(box, *[ALL_REDUCE] * 8)
    time.sleep(SLICE_S)
    read = Box(box.path)
    kept = read.recent(8)
    assert len(kept) == 4
    found = measured(read, slices(read), SLICE_S, time.time())
    assert all(each.number * SLICE_S >= kept[0].entered for each in found)


def test_a_phase_of_its_own_says_nothing(box: BoxWriter) -> None:
    work(box, ALL_REDUCE, ALL_REDUCE)
    box.phase("evaluation", 60.0)
    time.sleep(3 * SLICE_S)
    read = Box(box.path)
    since = read.step().phase_since
    found = measured(read, slices(read), SLICE_S, time.time())
    assert found
    assert all((each.number + 1) * SLICE_S <= since for each in found)


def test_the_newest_slices_are_kept(box: BoxWriter) -> None:
    waiting, read = Waiting(SLICES * SLICE_S), Box(box.path)
    waiting.look({0: read}, time.time())
    assert waiting.of(0) == ()
    pen = PythonPen(box, "/nowhere/torch")
    until = time.monotonic() + 1.5 * SLICES * SLICE_S
    while time.monotonic() < until:
        pen.finish(pen.record("0", ALL_REDUCE, CALL))
        time.sleep(0.03)
        waiting.look({0: read}, time.time())
    numbers = [each.number for each in waiting.of(0)]
    assert len(numbers) <= SLICES
    assert numbers == sorted(set(numbers))
    assert time.time() / SLICE_S - numbers[-1] < 60
    assert Waiting(0).of(0) == ()
