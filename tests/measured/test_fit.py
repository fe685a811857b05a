"""A line through times over sizes: what it finds, and how sure it says it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.measured.fit import line

SIZES = [8 * 4**power for power in range(12)]


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))
def test_times_on_a_line_give_back_its_latency_and_bandwidth(latency_s, bandwidth):
    found = line([(size, latency_s + size / bandwidth) for size in SIZES])
    if found is None:  # so fast a link that no size here tells of it
        assert SIZES[-1] / bandwidth < 1e-5 * latency_s
        return
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3, abs=1e-9)
    if SIZES[-1] / bandwidth > 1e-3 * latency_s:
        assert found.bandwidth == pytest.approx(bandwidth, rel=1e-2)
    assert found.worst_error < 1e-3


def test_the_truth_lies_within_the_intervals_as_often_as_they_say():
    chance, hits = random.Random(5), 0
    for _ in range(300):
        times = [(size, (200e-6 + size / 1e9) * chance.gauss(1, 0.1)) for size in SIZES]
        found = line(times)
        low, high = found.latency_interval_s
        slow, fast = found.bandwidth_interval
        hits += (low <= 200e-6 <= high) + (slow <= 1e9 <= (fast or 1e18))
    assert 0.90 <= hits / 600 <= 0.99  # 95 %


def test_a_line_that_does_not_fit_says_by_how_much():
    assert line([(size, 1e-4 + size / 1e9 + (1e-2 if size == 2048 else 0)) for size in SIZES]).worst_error > 0.5


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(8, 1e-4), (16, 1e-4)],
        [(8, 1e-4)] * 5,
        [(8, 1e-4), (64, 0.0), (512, 1e-4)],
        [(8, 3e-4), (1 << 20, 2e-4), (1 << 24, 1e-4)],  # larger is faster: no line of this kind
    ],
)
def test_where_no_line_can_be_laid_there_is_none(points):
    assert line(points) is None


def test_a_latency_below_nothing_is_nothing():
    found = line([(size, size / 1e9) for size in SIZES[6:]])
    assert found.latency_s == pytest.approx(0, abs=1e-9)
    assert found.bandwidth == pytest.approx(1e9)
