"""The HTML page of ``holdfast history cost``: one file without network access or scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from markupsafe import Markup

from holdfast.core.text import format_percent, pluralize
from holdfast.report.html import template_environment, template_source
from holdfast.serve.store.cost import DAY_S, HistoryCost, format_hours, run_end
from holdfast.serve.store.queries import StoredIncident, StoredRun

#: Drawing area of the plot, in units of the SVG's view box.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 420.0, 230.0, 50.0, 20.0, 12.0, 26.0
MAX_BARS = 31
#: Causes with a colour of their own; the others share the last one.
COLOURS = 6
OTHER = "other causes"
MAX_ROWS = 100


class BarPart(msgspec.Struct, frozen=True):
    """One cause in one bar: a rectangle, its colour and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    title: str


class PlotTick(msgspec.Struct, frozen=True):
    """A label at a position of an axis."""

    at: float
    text: str


class CostPlot(msgspec.Struct, frozen=True):
    """Lost GPU-hours over time, stacked by cause."""

    parts: tuple[BarPart, ...]
    across: tuple[PlotTick, ...]
    up: tuple[PlotTick, ...]
    legend: tuple[str, ...]
    days_per_bar: int


def cost_page(cost: HistoryCost, runs: Sequence[StoredRun], store: str) -> str:
    """Return the page as text, to be written as UTF-8; everything is escaped."""
    incidents = sorted(
        (each for run in runs for each in run.incidents if each.at >= cost.since),
        key=lambda incident: -incident.at,
    )
    return (
        template_environment()
        .get_template("history.html")
        .render(
            style=Markup(template_source("incident.css") + template_source("bench.css")),  # noqa: S704 - own files
            cost=cost,
            headline=_headline(cost),
            tone="fine" if not cost.failures else "warning",
            at=_date(cost.until, "%Y-%m-%d %H:%M UTC"),
            figures=_figures(cost),
            plot=draw_costs(cost) if cost.days else None,
            frame=(WIDTH, HEIGHT, LEFT, RIGHT, FOOT),
            incidents=[_incident_cells(each) for each in incidents[:MAX_ROWS]],
            runs=[_run_cells(run) for run in runs[:MAX_ROWS]],
            hidden=(len(incidents) - MAX_ROWS, len(runs) - MAX_ROWS),
            store=store,
            hours=format_hours,
        )
        + "\n"
    )


def _headline(cost: HistoryCost) -> str:
    if cost.goodput is None:
        return "No run in this period"
    lost = f"{format_hours(cost.lost_gpu_hours)} of {format_hours(cost.gpu_hours)} GPU-hours lost"
    return f"Goodput {format_percent(cost.goodput)}: {lost}"


def _figures(cost: HistoryCost) -> list[str]:
    figures = [pluralize(cost.runs, "run"), pluralize(cost.failures, "failure")]
    figures += [pluralize(cost.preemptions, "preemption")] if cost.preemptions else []
    if cost.mean_hours_between_failures is not None:
        figures.append(f"{format_hours(cost.mean_hours_between_failures)} h between failures")
    if cost.mean_gpu_hours_between_failures is not None:
        gpu_hours = format_hours(cost.mean_gpu_hours_between_failures)
        figures.append(f"{gpu_hours} GPU-hours between failures")
    return figures


def draw_costs(cost: HistoryCost) -> CostPlot:
    """Compute the geometry of the plot; the template only draws it."""
    legend = tuple(row.cause for row in cost.causes[:COLOURS])
    legend += (OTHER,) if len(cost.causes) > COLOURS else ()
    first = min(max(cost.since, 0.0) // DAY_S * DAY_S or cost.days[0].day, cost.days[0].day)
    days = round((cost.until // DAY_S * DAY_S - first) / DAY_S) + 1
    per_bar = math.ceil(days / MAX_BARS)
    bars: list[dict[str, float]] = [{} for _ in range(math.ceil(days / per_bar))]
    for day in cost.days:
        bar = bars[min(round((day.day - first) / DAY_S) // per_bar, len(bars) - 1)]
        for cause, lost in day.gpu_hours.items():
            name = cause if cause in legend else OTHER
            bar[name] = bar.get(name, 0.0) + lost
    top = _round_up(max(sum(bar.values()) for bar in bars) or 1.0)
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    begins = [first + number * per_bar * DAY_S for number in range(len(bars))]
    parts: list[BarPart] = []
    for number, bar in enumerate(bars):
        parts += _bar_parts(bar, legend, LEFT + number * step, step, top, begins[number])
    return CostPlot(
        parts=tuple(parts),
        across=tuple(
            PlotTick(LEFT + (number + 0.5) * step, _date(begins[number], "%m-%d"))
            for number in range(0, len(bars), math.ceil(len(bars) / 7))
        ),
        up=tuple(PlotTick(_y(top * share, top), f"{top * share:,.4g}") for share in (0, 0.5, 1)),
        legend=legend,
        days_per_bar=per_bar,
    )


def _bar_parts(
    bar: dict[str, float], legend: Sequence[str], x: float, step: float, top: float, begin: float
) -> list[BarPart]:
    parts, below = [], 0.0
    for colour, name in enumerate(legend):
        lost = bar.get(name, 0.0)
        if lost <= 0:
            continue
        y = _y(below + lost, top)
        title = f"{_date(begin, '%Y-%m-%d')}: {lost:.2f} GPU-hours, {name}"
        height = _y(below, top) - y
        parts.append(BarPart(x + step * 0.1, y, step * 0.8, max(height, 0.5), colour, title))
        below += lost
    return parts


def _y(value: float, top: float) -> float:
    return HEIGHT - FOOT - (HEIGHT - FOOT - TOP) * value / top


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _date(at: float, form: str = "%Y-%m-%d %H:%M") -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)


def _incident_cells(incident: StoredIncident) -> tuple[str, ...]:
    cause = f"{incident.code} {incident.cause}" if incident.cause else "no verdict"
    message = incident.message or "workers failed"
    return _date(incident.at), cause, incident.host or "", message, incident.decision.reason


def _run_cells(run: StoredRun) -> tuple[str, ...]:
    status = "-" if run.status is None else str(run.status)
    hours = f"{(run_end(run) - run.began) / 3600:.1f} h"
    return _date(run.began), run.name, status, str(run.world_size), hours, run.command
