"""Plots of measurements, measured out: which line lies where. The template draws them and decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.measured import TORCH, Measurement, Series, busbw
from holdfast.measured.fit import Fit
from holdfast.report.bench import time_text
from holdfast.report.text import duration

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, FOOT = 62.0, 14.0, 14.0, 34.0
#: Colours that the style sheet has; further lines begin anew.
COLOURS = 7
#: A limit that is further above the fastest line than this many times would press all lines to the ground.
_NEAR = 2.5
_MOST_TICKS = 9


class Dot(msgspec.Struct, frozen=True):
    """One size of one line: its place, the span from the least to the 99th percentile, and what a person reads."""

    x: float
    y: float
    top: float
    bottom: float
    title: str


class Curve(msgspec.Struct, frozen=True):
    """One way: its dots, a line through them, the fit (dashed), a colour and its name."""

    name: str
    colour: int
    points: str
    fit: str
    dots: tuple[Dot, ...]


class Tick(msgspec.Struct, frozen=True):
    """A line of the grid at ``at``, and its label."""

    at: float
    text: str


class Plot(msgspec.Struct, frozen=True):
    """One picture. ``limit`` is the height of the link's own rate, where it is within the picture."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    limit: Tick | None = None


def plots(measurement: Measurement, collective: str) -> tuple[Plot, Plot]:
    """Time over size, both by powers, and bandwidth on the bus over size."""
    lines = [each for each in measurement.series if each.collective == collective and each.rows]
    fits = {(fit.way, fit.backend): fit for fit in measurement.fits if fit.collective == collective}
    sizes = [row.size_bytes for each in lines for row in each.rows]
    x = _powers(sizes, LEFT, WIDTH - RIGHT, 2)
    across = tuple(Tick(x(size), size_text(size)) for size in _some(sorted(set(sizes))))
    return _times(lines, fits, x, across), _bandwidths(lines, x, across, _limit(measurement))


def _times(
    lines: Sequence[Series], fits: dict[tuple[str, str], Fit], x: Callable[[float], float], across: tuple[Tick, ...]
) -> Plot:
    timings = [row.timing for each in lines for row in each.rows if row.timing]
    low, high = min(each.min_s for each in timings), max(each.p99_s for each in timings)
    y = _powers((low, high), HEIGHT - FOOT, TOP, 10)
    curves = []
    for number, each in enumerate(lines):
        dots = tuple(
            Dot(x(row.size_bytes), y(row.timing.p50_s), y(row.timing.p99_s), y(row.timing.min_s),
                f"{each.name}, {size_text(row.size_bytes)}: median {time_text(row.timing.p50_s)}, "
                f"99 % below {time_text(row.timing.p99_s)}")
            for row in each.rows if row.timing
        )  # fmt: skip
        fit = fits.get((each.way, each.backend))
        drawn = [(x(row.size_bytes), y(fit.seconds(row.size_bytes))) for row in each.rows] if fit else []
        curves.append(Curve(_name(each, lines), number % COLOURS, _path(dots), _points(drawn), dots))
    up = tuple(Tick(y(10**power), duration(10.0**power)) for power in _decades(low, high))
    return Plot("Time", "median; bar from the least to the 99th percentile; dashed: the fit", tuple(curves), across, up)


def _bandwidths(
    lines: Sequence[Series], x: Callable[[float], float], across: tuple[Tick, ...], limit: float | None
) -> Plot:
    def speed(series: Series, size: int, seconds: float) -> float:
        return busbw(series.collective, size, seconds, series.ranks)

    best = max((speed(each, row.size_bytes, row.timing.min_s) for each in lines for row in each.rows if row.timing),
               default=0.0) or 1.0  # fmt: skip
    shown = limit if limit is not None and limit < _NEAR * best else None
    most = _nice(max(best, shown or 0.0))

    def y(value: float) -> float:
        return HEIGHT - FOOT - (HEIGHT - FOOT - TOP) * min(value, most) / most

    curves = []
    for number, each in enumerate(lines):
        dots = tuple(
            Dot(x(row.size_bytes), y(speed(each, row.size_bytes, row.timing.p50_s)),
                y(speed(each, row.size_bytes, row.timing.min_s)), y(speed(each, row.size_bytes, row.timing.p99_s)),
                f"{each.name}, {size_text(row.size_bytes)}: "
                f"{speed(each, row.size_bytes, row.timing.p50_s):.3g} GB/s on the bus")
            for row in each.rows if row.timing
        )  # fmt: skip
        curves.append(Curve(_name(each, lines), number % COLOURS, _path(dots), "", dots))
    up = tuple(Tick(y(most * step / 4), f"{most * step / 4:.3g}") for step in range(5))
    mark = Tick(y(shown), f"the link: {shown:.3g} GB/s") if shown else None
    return Plot("Bandwidth on the bus", "GB/s, of the median; bar as in the times", tuple(curves), across, up, mark)


def size_text(nbytes: int) -> str:
    """``8 B``, ``64 KiB``, ``1.5 MiB``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.3g} {unit}"
    return f"{nbytes} B"


def _limit(measurement: Measurement) -> float | None:
    rates = [host.line_rate for host in measurement.hosts]
    return min(rate for rate in rates if rate) / 1e9 if rates and all(rates) else None


def _name(series: Series, lines: Sequence[Series]) -> str:
    several = len({each.backend for each in lines}) > 1 or series.way == TORCH
    return f"{series.way} ({series.backend})" if several else series.way


def _powers(values: Iterable[float], first: float, last: float, base: float) -> Callable[[float], float]:
    """A scale on which equal ratios are equally long, with a little room at both ends."""
    logs = [math.log(max(value, 1e-12), base) for value in values] or [0.0]
    low, high = min(logs), max(logs)
    room = max((high - low) * 0.03, 0.05)
    span = high - low + 2 * room

    def place(value: float) -> float:
        share = (math.log(max(value, 1e-12), base) - low + room) / span
        return round(first + (last - first) * min(max(share, 0.0), 1.0), 2)

    return place


def _decades(low: float, high: float) -> range:
    return range(math.ceil(math.log10(max(low, 1e-12))), math.floor(math.log10(max(high, 1e-12))) + 1)


def _some(values: Sequence[int]) -> Sequence[int]:
    return values[:: -(-len(values) // _MOST_TICKS)]


def _nice(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten above it, so that quarters of it are short numbers."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value * 1.02 or step == 10)


def _path(dots: Sequence[Dot]) -> str:
    return _points([(dot.x, dot.y) for dot in dots])


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
