"""Compute the geometry of benchmark make_plots. The template only draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.core.measurements import TORCH_ALGORITHM, BenchSeries, Measurement, busbw
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.core.text import format_duration, format_precise_duration

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, FOOT = 62.0, 14.0, 14.0, 34.0
#: Number of colours in the style sheet; further curves repeat them.
COLOURS = 7
#: The link rate is drawn if it is at most this many times the highest bandwidth.
_MAX_LIMIT_FACTOR = 2.5
_MAX_TICKS = 9


class PlotDot(msgspec.Struct, frozen=True):
    """One size of one curve: position, bar from the minimum to the 99th percentile, and tooltip."""

    x: float
    y: float
    top: float
    bottom: float
    title: str


class PlotCurve(msgspec.Struct, frozen=True):
    """One algorithm: its dots, the line through them, the model fit, a colour and its name."""

    name: str
    colour: int
    points: str
    fit: str
    dots: tuple[PlotDot, ...]


class AxisTick(msgspec.Struct, frozen=True):
    """A grid line at position ``at``, and its label."""

    at: float
    text: str


class BenchPlot(msgspec.Struct, frozen=True):
    """One plot; ``limit`` is the rate of the link if it is in range."""

    title: str
    unit: str
    curves: tuple[PlotCurve, ...]
    across: tuple[AxisTick, ...]
    up: tuple[AxisTick, ...]
    limit: AxisTick | None = None


def make_plots(measurement: Measurement, collective: str) -> tuple[BenchPlot, BenchPlot]:
    """Return the plots of time (log-log) and of bus bandwidth over size."""
    lines = [each for each in measurement.series if each.collective == collective and each.rows]
    fits = {(fit.way, fit.backend): fit for fit in measurement.fits if fit.collective == collective}
    sizes = [row.size_bytes for each in lines for row in each.rows]
    x = _log_scale(sizes, LEFT, WIDTH - RIGHT, 2)
    across = tuple(AxisTick(x(size), size_label(size)) for size in _thin_out(sorted(set(sizes))))
    return _time_plot(lines, fits, x, across), _bandwidth_plot(
        lines, x, across, _link_rate(measurement)
    )


def _time_plot(
    lines: Sequence[BenchSeries],
    fits: dict[tuple[str, str], AlphaBetaFit],
    x: Callable[[float], float],
    across: tuple[AxisTick, ...],
) -> BenchPlot:
    timings = [row.timing for each in lines for row in each.rows if row.timing]
    low, high = min(each.min_s for each in timings), max(each.p99_s for each in timings)
    y = _log_scale((low, high), HEIGHT - FOOT, TOP, 10)
    curves = []
    for number, each in enumerate(lines):
        dots = tuple(
            PlotDot(
                x(row.size_bytes),
                y(row.timing.p50_s),
                y(row.timing.p99_s),
                y(row.timing.min_s),
                f"{each.name}, {size_label(row.size_bytes)}: "
                f"median {format_precise_duration(row.timing.p50_s)}, "
                f"p99 {format_precise_duration(row.timing.p99_s)}",
            )
            for row in each.rows
            if row.timing
        )
        fit = fits.get((each.way, each.backend))
        drawn = (
            [(x(row.size_bytes), y(fit.seconds(row.size_bytes))) for row in each.rows]
            if fit
            else []
        )
        curves.append(
            PlotCurve(
                _curve_name(each, lines), number % COLOURS, _dot_points(dots), _points(drawn), dots
            )
        )
    up = tuple(
        AxisTick(y(10**power), format_duration(10.0**power)) for power in _decades(low, high)
    )
    return BenchPlot(
        "Time",
        "median; bars: min to p99; dashed: alpha-beta model fit",
        tuple(curves),
        across,
        up,
    )


def _bandwidth_plot(
    lines: Sequence[BenchSeries],
    x: Callable[[float], float],
    across: tuple[AxisTick, ...],
    limit: float | None,
) -> BenchPlot:
    def speed(series: BenchSeries, size: int, seconds: float) -> float:
        return busbw(series.collective, size, seconds, series.ranks)

    best = (
        max(
            (
                speed(each, row.size_bytes, row.timing.min_s)
                for each in lines
                for row in each.rows
                if row.timing
            ),
            default=0.0,
        )
        or 1.0
    )
    shown = limit if limit is not None and limit < _MAX_LIMIT_FACTOR * best else None
    most = _round_up(max(best, shown or 0.0))

    def y(value: float) -> float:
        return HEIGHT - FOOT - (HEIGHT - FOOT - TOP) * min(value, most) / most

    curves = []
    for number, each in enumerate(lines):
        dots = tuple(
            PlotDot(
                x(row.size_bytes),
                y(speed(each, row.size_bytes, row.timing.p50_s)),
                y(speed(each, row.size_bytes, row.timing.min_s)),
                y(speed(each, row.size_bytes, row.timing.p99_s)),
                f"{each.name}, {size_label(row.size_bytes)}: "
                f"bus bandwidth {speed(each, row.size_bytes, row.timing.p50_s):.3g} GB/s",
            )
            for row in each.rows
            if row.timing
        )
        curves.append(
            PlotCurve(_curve_name(each, lines), number % COLOURS, _dot_points(dots), "", dots)
        )
    up = tuple(AxisTick(y(most * step / 4), f"{most * step / 4:.3g}") for step in range(5))
    mark = AxisTick(y(shown), f"link: {shown:.3g} GB/s") if shown else None
    return BenchPlot(
        "Bus bandwidth",
        "GB/s, median; bars: min to p99",
        tuple(curves),
        across,
        up,
        mark,
    )


def size_label(nbytes: int) -> str:
    """Return a short label of a size: ``8 B``, ``64 KiB``, ``1.5 MiB``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.3g} {unit}"
    return f"{nbytes} B"


def _link_rate(measurement: Measurement) -> float | None:
    rates = [host.line_rate for host in measurement.hosts]
    return min(rate for rate in rates if rate) / 1e9 if rates and all(rates) else None


def _curve_name(series: BenchSeries, lines: Sequence[BenchSeries]) -> str:
    several = len({each.backend for each in lines}) > 1 or series.way == TORCH_ALGORITHM
    return f"{series.way} ({series.backend})" if several else series.way


def _log_scale(
    values: Iterable[float], first: float, last: float, base: float
) -> Callable[[float], float]:
    """Return a logarithmic scale from ``first`` to ``last`` with a margin at both ends."""
    logs = [math.log(max(value, 1e-12), base) for value in values] or [0.0]
    low, high = min(logs), max(logs)
    margin = max((high - low) * 0.03, 0.05)
    span = high - low + 2 * margin

    def place(value: float) -> float:
        share = (math.log(max(value, 1e-12), base) - low + margin) / span
        return round(first + (last - first) * min(max(share, 0.0), 1.0), 2)

    return place


def _decades(low: float, high: float) -> range:
    return range(
        math.ceil(math.log10(max(low, 1e-12))), math.floor(math.log10(max(high, 1e-12))) + 1
    )


def _thin_out(values: Sequence[int]) -> Sequence[int]:
    return values[:: -(-len(values) // _MAX_TICKS)]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 8 times a power of ten, whose quarters are short numbers."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1, 2, 4, 8, 10) if step * power >= value * 1.02 or step == 10
    )


def _dot_points(dots: Sequence[PlotDot]) -> str:
    return _points([(dot.x, dot.y) for dot in dots])


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
