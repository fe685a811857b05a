"""The HTML page of a plan in one file without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from holdfast.core.text import format_duration
from holdfast.plan.render.summary import (
    GIB,
    PART_DESCRIPTIONS,
    PARTS,
    SYMBOLS,
    BatchSummary,
    GroupDrawing,
    MemoryBar,
    PlanView,
    ScalePoint,
    StepSummary,
)
from holdfast.report.html import template_environment, template_source
from holdfast.report.plot import AxisTick

#: Width of a drawing; bar names are to its left.
WIDTH, LEFT, RIGHT = 1180.0, 180.0, 74.0
_BAR, _STEP, _TOP, _FOOT = 30.0, 46.0, 26.0, 30.0
_CURVE_HEIGHT, _CURVE_LEFT = 330.0, 70.0
#: Sizes of the GPU squares; drawn nodes, and colours in the style sheet.
_GPU, _GPU_GAP, _NODE_GAP, _ROW = 26.0, 4.0, 9.0, 8
_MAX_NODES, COLOURS = 16, 8


class BarSegment(msgspec.Struct, frozen=True):
    """A rectangle of a bar: its style, position and tooltip.

    ``label`` is shown inside if it fits.
    """

    style: str
    x: float
    width: float
    title: str
    label: str = ""


class BarLane(msgspec.Struct, frozen=True):
    """A bar with its name and the label behind it."""

    name: str
    y: float
    segments: tuple[BarSegment, ...]
    end: float
    label: str
    limit: float = 0.0
    over: bool = False


class BarChart(msgspec.Struct, frozen=True):
    """Lanes over a scale."""

    lanes: tuple[BarLane, ...]
    ticks: tuple[AxisTick, ...]
    height: float
    unit: str


class CurveDot(msgspec.Struct, frozen=True):
    """A point of the scaling curve."""

    x: float
    y: float
    label: str
    title: str
    is_bend: bool


class CurveDrawing(msgspec.Struct, frozen=True):
    """Throughput over GPUs on logarithmic axes, with the line of full efficiency."""

    dots: tuple[CurveDot, ...]
    line: str
    ideal: str
    area: str
    across: tuple[AxisTick, ...]
    up: tuple[AxisTick, ...]
    height: float


class GpuSquare(msgspec.Struct, frozen=True):
    """A GPU: its position, group colour, number and tooltip."""

    x: float
    y: float
    colour: int
    text: str
    title: str


class NodeBox(msgspec.Struct, frozen=True):
    """A node with its GPUs."""

    x: float
    y: float
    name: str
    gpus: tuple[GpuSquare, ...]


class RankMap(msgspec.Struct, frozen=True):
    """All nodes, coloured by one kind of group."""

    title: str
    caption: str
    nodes: tuple[NodeBox, ...]
    width: float
    height: float
    node_width: float
    node_height: float


def plan_page(view: PlanView) -> str:
    """Return the whole page as text, to be written as UTF-8. Everything is escaped."""
    symbol, tone = SYMBOLS[view.fit]
    parts = [name for name in PARTS if any(dict(bar.parts).get(name) for bar in view.bars)]
    return (
        template_environment()
        .get_template("plan.html")
        .render(
            style=Markup(  # noqa: S704 - our own files
                template_source("incident.css")
                + template_source("bench.css")
                + template_source("plan.css")
            ),
            view=view,
            symbol=symbol,
            tone=tone,
            parts=parts,
            memory=memory_chart(view.bars),
            rows=[
                (
                    name,
                    PART_DESCRIPTIONS[name],
                    [dict(bar.parts).get(name, 0) / GIB for bar in view.bars],
                )
                for name in parts
            ],
            totals=[(bar.total / GIB, bar.memory / GIB) for bar in view.bars],
            step=step_chart(view.step) if view.step else None,
            dealt=batch_chart(view.batch) if view.batch else None,
            curve=curve_drawing(view.curve) if len(view.curve) > 1 else None,
            maps=[rank_map(each, view.per_node) for each in view.drawings],
            hidden_nodes=max(0, -(-view.world_size // view.per_node) - _drawn_nodes(view)),
            frame=(WIDTH, LEFT, RIGHT, _BAR),
            gpu=_GPU,
            curve_left=_CURVE_LEFT,
        )
        + "\n"
    )


# ---- bars


def memory_chart(bars: Sequence[MemoryBar]) -> BarChart:
    """Return a lane for each kind of rank in GiB; persistent parts come first, for comparison."""
    largest = max(max(bar.total, bar.memory) for bar in bars) * 1.02
    scale = (WIDTH - LEFT - RIGHT) / largest
    lanes = []
    for number, bar in enumerate(bars):
        y, x, pieces = _TOP + number * _STEP, LEFT, []
        sizes = dict(bar.parts)
        for name in PARTS:
            if nbytes := sizes.get(name, 0):
                size = f"{nbytes / GIB:.1f}"
                width = nbytes * scale
                label = (
                    f"{name} {size}"
                    if width > 9 * len(f"{name} {size}")
                    else size
                    if width > 30
                    else ""
                )
                pieces.append(
                    BarSegment(name, round(x, 1), round(width, 1), f"{name}: {size} GiB", label)
                )
                x += width
        lanes.append(
            BarLane(
                bar.name,
                y,
                tuple(pieces),
                round(x, 1),
                f"{bar.total / GIB:.1f}",
                round(LEFT + bar.memory * scale, 1),
                bar.total > bar.memory,
            )
        )
    ticks = tuple(
        AxisTick(round(LEFT + at * GIB * scale, 1), f"{at:g}") for at in _round_ticks(largest / GIB)
    )
    return BarChart(tuple(lanes), ticks, _TOP + len(lanes) * _STEP + _FOOT, "GiB")


def step_chart(step: StepSummary) -> BarChart:
    """Return one lane with the time spans of a step."""
    scale = (WIDTH - LEFT - RIGHT) / step.seconds
    x, pieces = LEFT, []
    for number, span in enumerate(step.spans):
        width, text = span.seconds * scale, format_duration(span.seconds)
        title = f"{span.name} {text}"
        label = title if width > 8 * len(title) else text if width > 9 * len(text) else ""
        pieces.append(
            BarSegment(f"t{number % COLOURS}", round(x, 1), round(width, 1), title, label)
        )
        x += width
    ticks = tuple(
        AxisTick(round(LEFT + time * scale, 1), _format_tick(time))
        for time in _round_ticks(step.seconds)
    )
    lane = BarLane("one step", _TOP, tuple(pieces), x, "")
    return BarChart((lane,), ticks, _TOP + _STEP + _FOOT, "")


def batch_chart(batch: BatchSummary) -> BarChart:
    """Return a lane for each batch share: its micro-batches, as long as the rank is busy."""
    longest = max(batch.step_s, *(share.busy_s for share in batch.shares))
    scale = (WIDTH - LEFT - RIGHT) / longest
    lanes = []
    for number, share in enumerate(batch.shares):
        x, pieces = LEFT, []
        for index, size in enumerate(share.micro_batches):
            width = share.busy_s * scale * size / share.samples
            text = f"{size} samples" if width > 84 else str(size) if width > 22 else ""
            pieces.append(
                BarSegment(
                    f"t{number % COLOURS}",
                    round(x, 1),
                    round(width - 2, 1),
                    f"micro-batch {index + 1} of {share.ranks}: {size} samples",
                    text,
                )
            )
            x += width
        lanes.append(
            BarLane(
                f"{share.ranks}, {share.name}",
                _TOP + number * _STEP,
                tuple(pieces),
                round(x, 1),
                f"{share.samples} each",
            )
        )
    ticks = tuple(
        AxisTick(round(LEFT + index * scale, 1), _format_tick(index))
        for index in _round_ticks(longest)
    )
    return BarChart(tuple(lanes), ticks, _TOP + len(lanes) * _STEP + _FOOT, "")


def _format_tick(seconds: float) -> str:
    return format_duration(seconds) if seconds else "0"


def _round_ticks(largest: float) -> list[float]:
    """Return up to eight round numbers from 0 on."""
    power = 10.0 ** math.floor(math.log10(largest))
    width = next(
        factor * power
        for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10)
        if largest / (factor * power) <= 8
    )
    return [round(number * width, 9) for number in range(int(largest / width) + 1)]


# ---- the curve


def curve_drawing(points: Sequence[ScalePoint]) -> CurveDrawing:
    """Return throughput over GPUs; the dashed line is the best throughput per GPU times GPUs."""
    sizes = [math.log2(point.gpus) for point in points]
    best = max(point.tokens_per_s / point.gpus for point in points)
    rates = [math.log10(point.tokens_per_s) for point in points]
    tops = [math.log10(best * point.gpus) for point in points]
    low, high = min(rates), max(tops) + 0.12
    # The label of a point is 22 below it, and the labels of the axis are at 12.
    foot, left, right = _CURVE_HEIGHT - 54.0, _CURVE_LEFT, WIDTH - 40.0
    span = (sizes[-1] - sizes[0]) or 1.0

    def x(size: float) -> float:
        return round(left + 24 + (right - left - 24) * (size - sizes[0]) / span, 1)

    def y(rate: float) -> float:
        return round(foot - (foot - 16) * (rate - low) / (high - low), 1)

    dots = tuple(
        CurveDot(
            x(size),
            y(rate),
            f"{point.efficiency:.0%}" + ("" if point.fit in ("", "fits") else f", {point.fit}"),
            f"{point.gpus:,} GPUs: {point.tokens_per_s:,.0f} tokens/s, {point.efficiency:.0%}, "
            f"{point.fit}. {point.reason}",
            bool(point.reason),
        )
        for point, size, rate in zip(points, sizes, rates, strict=True)
    )
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    ideal = [f"{x(size)},{y(top)}" for size, top in zip(sizes, tops, strict=True)]
    decades = [
        power + math.log10(step)
        for power in range(math.floor(low), math.ceil(high))
        for step in (1, 2, 5)
    ]
    up = tuple(AxisTick(y(each), _format_rate(10**each)) for each in decades if low < each < high)
    across = tuple(
        AxisTick(x(size), f"{point.gpus:,}") for point, size in zip(points, sizes, strict=True)
    )
    area = " ".join([*ideal, *reversed(line.split())])
    return CurveDrawing(dots, line, " ".join(ideal), area, across, up, _CURVE_HEIGHT)


def _format_rate(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size * 0.999:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"


# ---- rank placement


def _drawn_nodes(view: PlanView) -> int:
    """Return the number of drawn nodes."""
    return min(
        _MAX_NODES,
        max((len(drawing.group_numbers) // view.per_node for drawing in view.drawings), default=0),
    )


def rank_map(drawing: GroupDrawing, per_node: int) -> RankMap:
    """Return nodes side by side, their GPUs coloured by the groups of one kind."""
    columns = min(per_node, 4)
    rows = -(-per_node // columns)
    width = columns * (_GPU + _GPU_GAP) + _GPU_GAP + 8
    height = rows * (_GPU + _GPU_GAP) + _GPU_GAP + 24
    count = min(-(-len(drawing.group_numbers) // per_node), _MAX_NODES)
    nodes = []
    for node in range(count):
        x = (node % _ROW) * (width + _NODE_GAP) + 1
        y = (node // _ROW) * (height + _NODE_GAP) + 1
        members = drawing.group_numbers[node * per_node : (node + 1) * per_node]
        gpus = tuple(
            GpuSquare(
                x + 4 + _GPU_GAP + (index % columns) * (_GPU + _GPU_GAP),
                y + 20 + (index // columns) * (_GPU + _GPU_GAP),
                number % COLOURS,
                str(number),
                f"rank {node * per_node + index}: {drawing.title.casefold()}, {number}",
            )
            for index, number in enumerate(members)
        )
        nodes.append(NodeBox(x, y, f"node {node}", gpus))
    across, down = min(count, _ROW), -(-count // _ROW)
    return RankMap(
        drawing.title,
        drawing.caption,
        tuple(nodes),
        across * (width + _NODE_GAP),
        down * (height + _NODE_GAP),
        width,
        height,
    )
