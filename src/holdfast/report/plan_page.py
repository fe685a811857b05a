"""The page of a plan: memory by part, a step, the curve, where ranks stand; one file without script or network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from holdfast.report.html import environment, source
from holdfast.report.plan import GIB, MEANING, PARTS, SYMBOLS, Bar, Dealt, Drawn, Point, Shown, Speed
from holdfast.report.plot import Tick
from holdfast.report.text import duration

#: Pictures as wide as a card; names of bars stand to their left.
WIDTH, LEFT, RIGHT = 1180.0, 180.0, 74.0
_BAR, _STEP, _TOP, _FOOT = 30.0, 46.0, 26.0, 30.0
_CURVE_HEIGHT, _CURVE_LEFT = 330.0, 70.0
#: GPUs are squares; nodes that are drawn, and the colours that the style sheet has.
_GPU, _GPU_GAP, _NODE_GAP, _ROW = 26.0, 4.0, 9.0, 8
_MOST_NODES, COLOURS = 16, 8


class Piece(msgspec.Struct, frozen=True):
    """A rectangle of a bar: its style, place, and what a person reads; ``text`` stands in it where there is room."""

    kind: str
    x: float
    width: float
    title: str
    text: str = ""


class Lane(msgspec.Struct, frozen=True):
    """A bar with its name, and what stands behind it."""

    name: str
    y: float
    pieces: tuple[Piece, ...]
    end: float
    said: str
    limit: float = 0.0
    over: bool = False


class Chart(msgspec.Struct, frozen=True):
    """Lanes over a scale."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    height: float
    unit: str


class Dot(msgspec.Struct, frozen=True):
    """A size of the curve."""

    x: float
    y: float
    label: str
    title: str
    bent: bool


class Curve(msgspec.Struct, frozen=True):
    """Throughput over GPUs, both by powers, beside what it would be at full efficiency."""

    dots: tuple[Dot, ...]
    line: str
    ideal: str
    area: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    height: float


class Gpu(msgspec.Struct, frozen=True):
    """A square: its place, group (colour and number), and who it is."""

    x: float
    y: float
    colour: int
    text: str
    title: str


class Node(msgspec.Struct, frozen=True):
    """A box with GPUs."""

    x: float
    y: float
    name: str
    gpus: tuple[Gpu, ...]


class Map(msgspec.Struct, frozen=True):
    """All nodes, coloured by one kind of group."""

    title: str
    said: str
    nodes: tuple[Node, ...]
    width: float
    height: float
    node_width: float
    node_height: float


def page(shown: Shown) -> str:
    """The whole page as text, to be written as UTF-8. Everything is escaped."""
    symbol, tone = SYMBOLS[shown.answer]
    parts = [name for name in PARTS if any(dict(bar.parts).get(name) for bar in shown.bars)]
    return environment().get_template("plan.html").render(
        style=Markup(source("incident.css") + source("bench.css") + source("plan.css")),  # noqa: S704 - our own files
        shown=shown, symbol=symbol, tone=tone, parts=parts, memory=memory(shown.bars),
        rows=[(name, MEANING[name], [dict(bar.parts).get(name, 0) / GIB for bar in shown.bars]) for name in parts],
        totals=[(bar.total / GIB, bar.memory / GIB) for bar in shown.bars],
        step=step(shown.speed) if shown.speed else None,
        dealt=dealt(shown.dealt) if shown.dealt else None,
        curve=curve(shown.curve) if len(shown.curve) > 1 else None,
        maps=[drawing(each, shown.per_node) for each in shown.drawn],
        hidden_nodes=max(0, -(-shown.world // shown.per_node) - _most(shown)),
        frame=(WIDTH, LEFT, RIGHT, _BAR), gpu=_GPU, curve_left=_CURVE_LEFT,
    ) + "\n"  # fmt: skip


# ---- bars


def memory(bars: Sequence[Bar]) -> Chart:
    """A lane for each kind of rank, in GiB; held parts first, so that bars can be compared."""
    most = max(max(bar.total, bar.memory) for bar in bars) * 1.02
    scale = (WIDTH - LEFT - RIGHT) / most
    lanes = []
    for number, bar in enumerate(bars):
        y, x, pieces = _TOP + number * _STEP, LEFT, []
        sizes = dict(bar.parts)
        for name in PARTS:
            if nbytes := sizes.get(name, 0):
                said = f"{nbytes / GIB:.1f}"
                wide = nbytes * scale
                room = f"{name} {said}" if wide > 9 * len(f"{name} {said}") else said if wide > 30 else ""
                pieces.append(Piece(name, round(x, 1), round(wide, 1), f"{name}: {said} GiB", room))
                x += wide
        lanes.append(Lane(bar.name, y, tuple(pieces), round(x, 1), f"{bar.total / GIB:.1f}",
                          round(LEFT + bar.memory * scale, 1), bar.total > bar.memory))  # fmt: skip
    ticks = tuple(Tick(round(LEFT + at * GIB * scale, 1), f"{at:g}") for at in _even(most / GIB))
    return Chart(tuple(lanes), ticks, _TOP + len(lanes) * _STEP + _FOOT, "GiB")


def step(speed: Speed) -> Chart:
    """One lane: what a step goes to; what is hidden stands below it."""
    scale = (WIDTH - LEFT - RIGHT) / speed.seconds
    x, pieces = LEFT, []
    for number, span in enumerate(speed.spans):
        wide, text = span.seconds * scale, duration(span.seconds)
        said = f"{span.name} {text}"
        room = said if wide > 8 * len(said) else text if wide > 9 * len(text) else ""
        pieces.append(Piece(f"t{number % COLOURS}", round(x, 1), round(wide, 1), said, room))
        x += wide
    ticks = tuple(Tick(round(LEFT + at * scale, 1), _time(at)) for at in _even(speed.seconds))
    lane = Lane("a step", _TOP, tuple(pieces), x, "")
    return Chart((lane,), ticks, _TOP + _STEP + _FOOT, "")


def dealt(found: Dealt) -> Chart:
    """A lane for each share of a batch: its micro-batches, as long as it is busy."""
    most = max(found.step_s, *(share.busy_s for share in found.shares))
    scale = (WIDTH - LEFT - RIGHT) / most
    lanes = []
    for number, share in enumerate(found.shares):
        x, pieces = LEFT, []
        for at, size in enumerate(share.micro_batches):
            wide = share.busy_s * scale * size / share.samples
            text = f"{size} samples" if wide > 84 else str(size) if wide > 22 else ""
            pieces.append(Piece(f"t{number % COLOURS}", round(x, 1), round(wide - 2, 1),
                                f"micro-batch {at + 1} of {share.ranks}: {size} samples", text))  # fmt: skip
            x += wide
        lanes.append(Lane(f"{share.ranks}, {share.name}", _TOP + number * _STEP, tuple(pieces), round(x, 1),
                          f"{share.samples} each"))  # fmt: skip
    ticks = tuple(Tick(round(LEFT + at * scale, 1), _time(at)) for at in _even(most))
    return Chart(tuple(lanes), ticks, _TOP + len(lanes) * _STEP + _FOOT, "")


def _time(seconds: float) -> str:
    return duration(seconds) if seconds else "0"


def _even(most: float) -> list[float]:
    """Up to eight round numbers from 0 on."""
    power = 10.0 ** math.floor(math.log10(most))
    width = next(each * power for each in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10) if most / (each * power) <= 8)
    return [round(number * width, 9) for number in range(int(most / width) + 1)]


# ---- the curve


def curve(points: Sequence[Point]) -> Curve:
    """Powers of two across, throughput up; the dashed line is the best throughput a GPU, times GPUs."""
    sizes = [math.log2(point.gpus) for point in points]
    best = max(point.tokens_per_s / point.gpus for point in points)
    rates = [math.log10(point.tokens_per_s) for point in points]
    tops = [math.log10(best * point.gpus) for point in points]
    low, high = min(rates) - 0.08, max(tops) + 0.12
    foot, left, right = _CURVE_HEIGHT - 34.0, _CURVE_LEFT, WIDTH - 40.0
    span = (sizes[-1] - sizes[0]) or 1.0

    def x(size: float) -> float:
        return round(left + 24 + (right - left - 24) * (size - sizes[0]) / span, 1)

    def y(rate: float) -> float:
        return round(foot - (foot - 16) * (rate - low) / (high - low), 1)

    dots = tuple(
        Dot(x(size), y(rate), f"{point.efficiency:.0%}" + ("" if point.answer in ("", "fits") else f", {point.answer}"),
            f"{point.gpus:,} GPUs: {point.tokens_per_s:,.0f} tokens/s, {point.efficiency:.0%}, "
            f"{point.answer}. {point.reason}", bool(point.reason))
        for point, size, rate in zip(points, sizes, rates, strict=True)
    )  # fmt: skip
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    ideal = [f"{x(size)},{y(top)}" for size, top in zip(sizes, tops, strict=True)]
    decades = [power + math.log10(step) for power in range(math.floor(low), math.ceil(high)) for step in (1, 2, 5)]
    up = tuple(Tick(y(each), _rate(10**each)) for each in decades if low < each < high)
    across = tuple(Tick(x(size), f"{point.gpus:,}") for point, size in zip(points, sizes, strict=True))
    area = " ".join([*ideal, *reversed(line.split())])
    return Curve(dots, line, " ".join(ideal), area, across, up, _CURVE_HEIGHT)


def _rate(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size * 0.999:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"


# ---- where ranks stand


def _most(shown: Shown) -> int:
    """Nodes that are drawn."""
    return min(_MOST_NODES, max((len(each.numbers) // shown.per_node for each in shown.drawn), default=0))


def drawing(drawn: Drawn, per_node: int) -> Map:
    """Nodes side by side, their GPUs coloured by the groups of one kind."""
    columns = min(per_node, 4)
    rows = -(-per_node // columns)
    wide = columns * (_GPU + _GPU_GAP) + _GPU_GAP + 8
    high = rows * (_GPU + _GPU_GAP) + _GPU_GAP + 24
    count = min(-(-len(drawn.numbers) // per_node), _MOST_NODES)
    nodes = []
    for node in range(count):
        x = (node % _ROW) * (wide + _NODE_GAP) + 1
        y = (node // _ROW) * (high + _NODE_GAP) + 1
        members = drawn.numbers[node * per_node : (node + 1) * per_node]
        gpus = tuple(
            Gpu(x + 4 + _GPU_GAP + (at % columns) * (_GPU + _GPU_GAP), y + 20 + (at // columns) * (_GPU + _GPU_GAP),
                number % COLOURS, str(number), f"rank {node * per_node + at}: {drawn.title.casefold()}, {number}")
            for at, number in enumerate(members)
        )  # fmt: skip
        nodes.append(Node(x, y, f"node {node}", gpus))
    across, down = min(count, _ROW), -(-count // _ROW)
    return Map(
        drawn.title, drawn.said, tuple(nodes), across * (wide + _NODE_GAP), down * (high + _NODE_GAP), wide, high
    )
