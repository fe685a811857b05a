"""Fit latency and bandwidth of a collective to its measured durations.

A call of S bytes takes about ``latency + S / bandwidth`` (the alpha-beta model: R. W. Hockney, "The
communication challenge for MPP", Parallel Computing 20, 1994).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

#: Minimum number of distinct sizes for a fit.
LEAST_SIZES = 3
#: 97.5th percentiles of Student's t for 1, 2, … degrees of freedom, then the normal distribution's.
_T = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
    2.09,
    2.08,
    2.07,
    2.07,
    2.06,
    2.06,
    2.06,
    2.05,
    2.05,
    2.05,
    2.04,
)
_T_MANY = 1.96

_Word = Annotated[str, msgspec.Meta(max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Speed = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class AlphaBetaFit(msgspec.Struct, frozen=True, kw_only=True):
    """Latency in seconds and bandwidth in bytes/s of one collective, with 95% confidence intervals.

    The bandwidth is the algorithm bandwidth (bytes of one rank's buffer per second), not the bus
    bandwidth; the upper end of its interval is None if the durations may not grow with size at all.
    ``worst_error`` is the largest relative residual. ``hosts`` is the number of hosts; ``at`` is
    Unix time in seconds.
    """

    collective: _Word
    way: _Word
    backend: _Word
    dtype: _Word
    ranks: _Count
    hosts: _Count
    latency_s: _Seconds
    latency_interval_s: tuple[_Seconds, _Seconds]
    bandwidth: _Speed
    bandwidth_interval: tuple[_Speed, _Speed | None]
    worst_error: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    largest_bytes: _Count = 0
    at: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """Return what identifies a fit; the newest of each key is used."""
        return self.collective, self.way, self.backend, self.dtype, self.ranks, self.hosts

    def seconds(self, nbytes: float) -> float:
        """Return the expected duration of a call of ``nbytes``."""
        return self.latency_s + nbytes / self.bandwidth


class AlphaBetaLine(msgspec.Struct, frozen=True, kw_only=True):
    """A least-squares line minimizing the *relative* errors of durations, with 95% intervals."""

    latency_s: float
    latency_interval_s: tuple[float, float]
    bandwidth: float
    bandwidth_interval: tuple[float, float | None]
    worst_error: float


def fit_alpha_beta(points: Sequence[tuple[float, float]]) -> AlphaBetaLine | None:
    """Fit (bytes, seconds) pairs; None with too few sizes, or if durations do not grow with size.

    Every size has the same weight, because the relative error is minimized. The intervals are
    derived from the residuals, so they include the model's error.
    """
    if len({nbytes for nbytes, _ in points}) < LEAST_SIZES or any(
        seconds <= 0 for _, seconds in points
    ):
        return None
    weights = [1 / seconds**2 for _, seconds in points]
    n, x, xx, y, xy = (
        math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
        for values in (
            [1.0] * len(points),
            [size for size, _ in points],
            [size * size for size, _ in points],
            [seconds for _, seconds in points],
            [size * seconds for size, seconds in points],
        )
    )
    determinant = n * xx - x * x
    slope = (n * xy - x * y) / determinant
    latency = (y - slope * x) / n
    through_zero = latency < 0
    if through_zero:
        latency, slope = 0.0, xy / xx
    if slope <= 0:
        return None
    errors = [(latency + slope * size) / seconds - 1 for size, seconds in points]
    degrees = len(points) - (1 if through_zero else 2)
    variance = math.fsum(error * error for error in errors) / degrees
    t = _T[degrees - 1] if degrees <= len(_T) else _T_MANY
    slope_margin = t * math.sqrt(variance * (1 / xx if through_zero else n / determinant))
    latency_margin = 0.0 if through_zero else t * math.sqrt(variance * xx / determinant)
    return AlphaBetaLine(
        latency_s=latency,
        latency_interval_s=(max(0.0, latency - latency_margin), latency + latency_margin),
        bandwidth=1 / slope,
        bandwidth_interval=(
            1 / (slope + slope_margin),
            1 / (slope - slope_margin) if slope > slope_margin else None,
        ),
        worst_error=max(map(abs, errors)),
    )
