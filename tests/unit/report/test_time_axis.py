from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.report.time_axis import MAX_GAP_SHARE, SILENCE_SHARE, make_axis

TIMES = st.lists(st.floats(0, 1000), max_size=60)


@given(TIMES, st.booleans())
def test_positions_increase_with_time(events, stalled):
    axis = make_axis(events, 0.0, 1000.0, 100.0, 900.0, stalled=stalled)
    assert axis.x(0.0) == 100.0
    assert axis.x(1000.0) == pytest.approx(900.0)
    assert axis.x(-5.0) == 100.0
    assert axis.x(2000.0) == pytest.approx(900.0)
    places = [axis.x(event) for event in sorted(events)]
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(places))


def test_even_steps_are_to_scale():
    axis = make_axis(range(100), 0.0, 100.0, 0.0, 1000.0, stalled=False)
    assert [round(axis.x(moment)) for moment in (0, 25, 50, 99.5)] == [0, 250, 500, 995]
    assert axis.breaks == ()


def test_long_gap_is_shortened_and_marked():
    # 20 steps of 1 s, 600 s of nothing, 20 steps of 1 s: the wait gets 12 % of the width instead of 94 %.
    axis = make_axis([*range(21), *range(620, 641)], 0.0, 640.0, 0.0, 1000.0, stalled=False)
    (gap,) = axis.breaks
    assert gap.seconds == 600
    assert gap.right - gap.left == pytest.approx(1000 * MAX_GAP_SHARE)
    assert axis.x(10) == pytest.approx(220)  # the middle of the first burst: half of (1 - 0.12) / 2


def test_stall_has_a_separate_part():
    for silence in (0.5, 6.0, 1800.0):
        axis = make_axis(range(50), 0.0, 49.0 + silence, 0.0, 1000.0, stalled=True)
        assert axis.last_progress == 49
        assert axis.x(49) == pytest.approx(1000 * (1 - SILENCE_SHARE))
        assert axis.x(49 + silence) == 1000


def test_empty_axis():
    assert make_axis([], 5.0, 5.0, 0.0, 10.0, stalled=True).x(5.0) in {0.0, 10.0}
    assert make_axis([], 0.0, 5.0, 0.0, 10.0, stalled=False).x(2.5) == pytest.approx(5.0)
    assert make_axis([], 9.0, 5.0, 0.0, 10.0, stalled=False).x(9.0) in {0.0, 10.0}


def test_invalid_times_are_ignored():
    axis = make_axis([float("nan"), 1.0], 0.0, 2.0, 0.0, 10.0, stalled=False)
    assert axis.x(1.0) == pytest.approx(5.0)
