"""The alpha-beta fit: recovered parameters, intervals, residuals, and inputs without a fit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.measurements.fit import fit_alpha_beta

SIZES = [8 * 4**power for power in range(12)]


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))
def test_exact_lines_are_recovered(latency_s, bandwidth):
    found = fit_alpha_beta([(size, latency_s + size / bandwidth) for size in SIZES])
    if found is None:  # the link is too fast for these sizes
        assert SIZES[-1] / bandwidth < 1e-5 * latency_s
        return
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3, abs=1e-9)
    if SIZES[-1] / bandwidth > 1e-3 * latency_s:
        assert found.bandwidth == pytest.approx(bandwidth, rel=1e-2)
    assert found.worst_error < 1e-3


def test_intervals_have_95_percent_coverage():
    chance, hits = random.Random(5), 0
    for _ in range(300):
        times = [(size, (200e-6 + size / 1e9) * chance.gauss(1, 0.1)) for size in SIZES]
        found = fit_alpha_beta(times)
        low, high = found.latency_interval_s
        slow, fast = found.bandwidth_interval
        hits += (low <= 200e-6 <= high) + (slow <= 1e9 <= (fast or 1e18))
    assert 0.90 <= hits / 600 <= 0.99  # 95 %


def test_worst_error_reports_outliers():
    assert (
        fit_alpha_beta(
            [(size, 1e-4 + size / 1e9 + (1e-2 if size == 2048 else 0)) for size in SIZES]
        ).worst_error
        > 0.5
    )


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(8, 1e-4), (16, 1e-4)],
        [(8, 1e-4)] * 5,
        [(8, 1e-4), (64, 0.0), (512, 1e-4)],
        [
            (8, 3e-4),
            (1 << 20, 2e-4),
            (1 << 24, 1e-4),
        ],  # larger is faster: not a line with positive bandwidth
    ],
)
def test_no_fit(points):
    assert fit_alpha_beta(points) is None


def test_latency_is_never_negative():
    found = fit_alpha_beta([(size, size / 1e9) for size in SIZES[6:]])
    assert found.latency_s == pytest.approx(0, abs=1e-9)
    assert found.bandwidth == pytest.approx(1e9)
