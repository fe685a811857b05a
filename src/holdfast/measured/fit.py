"""Latency and bandwidth of a collective, from how long its calls took: a line through times over sizes.

A call of S bytes takes about ``latency + S / bandwidth`` (the alpha-beta model: R. W. Hockney, "The communication
challenge for MPP", Parallel Computing 20, 1994).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

#: Sizes below which no line is laid through them.
LEAST_SIZES = 3
#: 97.5th percentiles of Student's t for 1, 2, … degrees of freedom; the normal distribution's for more.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10,
      2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04)  # fmt: skip
_T_MANY = 1.96

_Word = Annotated[str, msgspec.Meta(max_length=200)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Speed = Annotated[float, msgspec.Meta(gt=0, le=1e18)]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Latency in seconds and bandwidth in bytes a second of one collective, each with its 95 % interval.

    The bandwidth is that of the call (bytes of one rank's buffer by time), not of the bus; the upper end of its
    interval is None where the times could as well not grow at all. ``worst_error``: by what share of the time the line
    is off at the size where it is worst. ``hosts`` counts them, ``at`` is in Unix seconds.
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
        """What makes fits alike: the newest of them counts."""
        return self.collective, self.way, self.backend, self.dtype, self.ranks, self.hosts

    def seconds(self, nbytes: float) -> float:
        """What a call of so many bytes is expected to take."""
        return self.latency_s + nbytes / self.bandwidth


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line through times over sizes, by least squares of the *relative* errors, with 95 % intervals."""

    latency_s: float
    latency_interval_s: tuple[float, float]
    bandwidth: float
    bandwidth_interval: tuple[float, float | None]
    worst_error: float


def line(points: Sequence[tuple[float, float]]) -> Line | None:
    """Latency and bandwidth of (bytes, seconds) pairs; None where there are too few, or no time grows with the size.

    Each size counts the same, be it a microsecond or a minute: what is made small is the error's share of the time.
    The intervals hold what the model misses, too, as they come from how far the points lie off the line.
    """
    if len({nbytes for nbytes, _ in points}) < LEAST_SIZES or any(seconds <= 0 for _, seconds in points):
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
    spread = n * xx - x * x
    slope = (n * xy - x * y) / spread
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
    around_slope = t * math.sqrt(variance * (1 / xx if through_zero else n / spread))
    around_latency = 0.0 if through_zero else t * math.sqrt(variance * xx / spread)
    return Line(
        latency_s=latency, latency_interval_s=(max(0.0, latency - around_latency), latency + around_latency),
        bandwidth=1 / slope,
        bandwidth_interval=(1 / (slope + around_slope), 1 / (slope - around_slope) if slope > around_slope else None),
        worst_error=max(map(abs, errors)),
    )  # fmt: skip
