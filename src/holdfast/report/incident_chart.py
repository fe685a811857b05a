"""Compute the geometry of the incident chart: bars, gaps, ticks. The template only draws them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from holdfast.core.rank_sets import compress_ranks, describe_ranks
from holdfast.core.text import format_duration, one_line
from holdfast.report.lanes import SharedLane, in_flight, share_lanes, view_begin
from holdfast.report.time_axis import TimeAxis, make_axis
from holdfast.report.timeline import Timeline, TimelineSpan

WIDTH = 1180.0
GUTTER = 184.0
TOP = 34.0
LANE_HEIGHT = 46.0
BAR_HEIGHT = 30.0
FOOT = 30.0
TRACKS = 3
#: Width of a character in chart units: in lane names, captions, and notes.
NAME_CHARACTER = 8.4
CHARACTER = 7.3
SMALL_CHARACTER = 5.9

#: Families of operations, in order of precedence: colour class -> (words in the name, legend).
FAMILIES: dict[str, tuple[tuple[str, ...], str]] = {
    "phase": (("phase", "step"), "phase"),
    "setup": (("init", "new_group", "destroy"), "group setup"),
    "barrier": (("barrier",), "barrier"),
    "exchange": (("all_to_all", "alltoall"), "all-to-all"),
    "reduce": (("reduce",), "reduce"),
    "gather": (("gather",), "gather"),
    "spread": (("broadcast", "scatter"), "broadcast, scatter"),
    "pair": (("send", "recv"), "send, recv"),
}
OTHER = "other"


class SpanBar(msgspec.Struct, frozen=True):
    """One span: position, size, colour class, a ``key`` per label, and texts."""

    x: float
    y: float
    width: float
    height: float
    family: str
    key: int
    title: str
    flying: bool = False
    caption: str = ""


class IdleGap(msgspec.Struct, frozen=True):
    """Time in which a rank is in no collective while others wait: position, size, texts."""

    x: float
    y: float
    width: float
    height: float
    caption: str
    note: str
    title: str


class ChartLane(msgspec.Struct, frozen=True):
    """The row of a lane; ``named``: the root of the verdict is about it."""

    y: float
    name: str
    state: str
    title: str
    named: bool
    bars: tuple[SpanBar, ...]
    gap: IdleGap | None


class TimeTick(msgspec.Struct, frozen=True):
    """A time below the chart; ``anchor`` is SVG's text-anchor."""

    x: float
    text: str
    anchor: str


class IncidentChart(msgspec.Struct, frozen=True):
    """All elements in units of the SVG view box; ``hidden`` counts ranks without a lane."""

    width: float
    height: float
    left: float
    right: float
    lanes: tuple[ChartLane, ...]
    shared: tuple[SharedLane, ...]
    ticks: tuple[TimeTick, ...]
    breaks: tuple[tuple[float, float, str], ...]
    silence: float | None
    silence_text: str
    legend: tuple[tuple[str, str], ...]
    description: str
    hidden: int = 0


def draw_chart(timeline: Timeline, root: int | None, named: Collection[int]) -> IncidentChart:
    """Return the chart of ``timeline``; ``root`` is highlighted, ``named`` are kept apart."""
    begin = view_begin(timeline.lanes, timeline.begin, timeline.end)
    keep = {*named} | ({root} if root is not None else set())
    shared, hidden = share_lanes(timeline.lanes, keep, begin)
    awaited = _awaited_span(shared)
    axis = make_axis(
        _event_times(shared), begin, timeline.end, GUTTER, WIDTH, stalled=awaited is not None
    )
    keys: dict[str, int] = {}
    lanes = tuple(
        _chart_lane(lane, TOP + row * LANE_HEIGHT, axis, awaited, root, keys)
        for row, lane in enumerate(shared)
    )
    stalled = axis.last_progress < axis.moments[-1]
    return IncidentChart(
        width=WIDTH,
        height=TOP + len(shared) * LANE_HEIGHT + FOOT,
        left=GUTTER,
        right=WIDTH,
        lanes=lanes,
        shared=tuple(shared),
        ticks=_time_ticks(axis, stalled=stalled),
        breaks=_axis_breaks(axis),
        silence=axis.x(axis.last_progress) if stalled else None,
        silence_text=f"no progress for {format_duration(timeline.end - axis.last_progress)}"
        if stalled
        else "",
        legend=_legend(shared),
        description=_describe_chart(shared, awaited),
        hidden=hidden,
    )


def family_of(kind: str) -> str:
    """Return the colour class of an operation."""
    for family, (words, _) in FAMILIES.items():
        if any(word in kind for word in words):
            return family
    return OTHER


def _event_times(shared: Sequence[SharedLane]) -> list[float]:
    spans = [span for lane in shared for span in lane.lane.spans]
    return [span.start for span in spans] + [span.end for span in spans if span.end is not None]


def _awaited_span(shared: Sequence[SharedLane]) -> TimelineSpan | None:
    """Return the call in flight on the most ranks, as recorded by the first rank to enter it."""
    flying = [span for lane in shared for span in lane.lane.spans if span.end is None]
    votes = Counter({span.label: 0 for span in flying})
    for lane in shared:
        votes.update({label: len(lane.ranks) for label in in_flight(lane.lane.spans)})
    if not votes:
        return None
    label = votes.most_common(1)[0][0]
    return min((span for span in flying if span.label == label), key=lambda span: span.start)


def _chart_lane(
    shared: SharedLane,
    y: float,
    axis: TimeAxis,
    awaited: TimelineSpan | None,
    root: int | None,
    keys: dict[str, int],
) -> ChartLane:
    lane = shared.lane
    named = root is not None and root in shared.ranks
    many = len(shared.ranks)
    where = f" at {lane.place}" if lane.place else ""
    return ChartLane(
        y=y,
        name=_cut_end(
            f"rank{'s' * (many > 1)} {compress_ranks(shared.ranks, limit=4)}", NAME_CHARACTER
        ),
        state=_cut_end(
            (f"{many} ranks, " if many > 1 else "") + one_line(lane.state), SMALL_CHARACTER
        ),
        title=f"{describe_ranks(shared.ranks)}, {one_line(lane.state)}{where}",
        named=named,
        bars=_span_bars(lane.spans, y + (LANE_HEIGHT - BAR_HEIGHT) / 2, axis, keys),
        gap=_idle_gap(shared, y + (LANE_HEIGHT - BAR_HEIGHT) / 2, axis, awaited),
    )


def _span_bars(
    spans: Sequence[TimelineSpan], top: float, axis: TimeAxis, keys: dict[str, int]
) -> tuple[SpanBar, ...]:
    tracks = _tracks(spans)
    height = BAR_HEIGHT / (max(tracks, default=0) + 1)
    places = [(top + track * height, height) for track in tracks]
    if spans and _is_last_alone(spans):
        places[-1] = (top, BAR_HEIGHT)
    return tuple(
        _span_bar(span, y, high, axis, keys.setdefault(span.label, len(keys)))
        for span, (y, high) in zip(spans, places, strict=True)
    )


def _is_last_alone(spans: Sequence[TimelineSpan]) -> bool:
    """Return whether the last call began after all others ended; it gets the full lane height."""
    *earlier, last = spans
    return last.end is None and all(
        span.end is not None and span.end <= last.start for span in earlier
    )


def _tracks(spans: Sequence[TimelineSpan]) -> list[int]:
    """Return a track per call: calls that overlap in time are stacked on at most TRACKS tracks."""
    ends: list[float] = []
    chosen = []
    for span in spans:
        free = next((track for track, end in enumerate(ends) if end <= span.start), len(ends))
        track = min(free, TRACKS - 1)
        if track == len(ends):
            ends.append(0.0)
        ends[track] = max(ends[track], float("inf") if span.end is None else span.end)
        chosen.append(track)
    return chosen


def _span_bar(span: TimelineSpan, y: float, height: float, axis: TimeAxis, key: int) -> SpanBar:
    x = axis.x(span.start)
    right = axis.places[-1] if span.end is None else axis.x(span.end)
    width = max(right - x - 0.8, 1.6)
    lasted = (
        "entered, never completed" if span.end is None else format_duration(span.end - span.start)
    )
    return SpanBar(
        x=x,
        y=y,
        width=width,
        height=max(height - 1, 2),
        family=family_of(span.kind),
        key=key,
        title=f"{one_line(span.label)}: {lasted}"
        + (f", {one_line(span.detail)}" if span.detail else ""),
        flying=span.end is None,
        caption=_cut_begin(one_line(span.label), width) if span.end is None and height > 12 else "",
    )


def _idle_gap(
    shared: SharedLane, y: float, axis: TimeAxis, awaited: TimelineSpan | None
) -> IdleGap | None:
    lane = shared.lane
    if awaited is None or in_flight(lane.spans):
        return None
    entered = any(span.label == awaited.label for span in lane.spans)
    last_end = max(
        (span.end for span in lane.spans if span.end is not None), default=axis.moments[0]
    )
    x = axis.x(max(last_end, awaited.start)) + 1
    width = axis.places[-1] - x
    caption = "in no collective" if entered else f"never entered {one_line(awaited.label)}"
    note = one_line(" at ".join(part for part in (lane.state, lane.place) if part))
    return IdleGap(
        x,
        y,
        width,
        BAR_HEIGHT,
        _cut_begin(caption, width, SMALL_CHARACTER),
        _cut_begin(note, width, SMALL_CHARACTER),
        f"{caption}; {note}",
    )


def _cut_begin(text: str, width: float, character: float = CHARACTER) -> str:
    """Return the end of ``text`` that fits ``width``: it contains the line number."""
    characters = int((width - 12) / character)
    if len(text) <= characters:
        return text
    return "…" + text[len(text) - characters + 1 :] if characters > 8 else ""


def _cut_end(text: str, character: float) -> str:
    """Return the begin of ``text`` that fits beside a lane."""
    characters = int((GUTTER - 16) / character)
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _time_ticks(axis: TimeAxis, *, stalled: bool) -> tuple[TimeTick, ...]:
    zero = axis.last_progress
    split = axis.x(zero)
    wanted = [GUTTER + (split - GUTTER) * part for part in (0.25, 0.5, 0.75)]
    moments = sorted({axis.moments[0], *(axis.nearest(place) for place in wanted)})
    ticks = [TimeTick(GUTTER, _format_offset(axis.moments[0] - zero), "start")]
    for moment in moments:
        if axis.x(moment) - ticks[-1].x > 80 and split - axis.x(moment) > 80:
            ticks.append(TimeTick(axis.x(moment), _format_offset(moment - zero), "middle"))
    if stalled:
        ticks.append(TimeTick(split, "last progress", "middle"))
    ticks.append(
        TimeTick(WIDTH, _format_offset(axis.moments[-1] - zero) if stalled else "end", "end")
    )
    return tuple(ticks)


def _format_offset(seconds: float) -> str:
    return f"+{format_duration(seconds)}" if seconds > 0 else format_duration(seconds)


def _axis_breaks(axis: TimeAxis) -> tuple[tuple[float, float, str], ...]:
    wide = [gap for gap in axis.breaks if gap.right - gap.left >= 14]
    return tuple(
        (gap.left, gap.right, format_duration(gap.seconds) if gap.right - gap.left > 44 else "")
        for gap in wide
    )


def _legend(shared: Sequence[SharedLane]) -> tuple[tuple[str, str], ...]:
    used = {family_of(span.kind) for lane in shared for span in lane.lane.spans}
    names = {family: name for family, (_, name) in FAMILIES.items()} | {OTHER: "other"}
    return tuple((family, name) for family, name in names.items() if family in used)


def _describe_chart(shared: Sequence[SharedLane], awaited: TimelineSpan | None) -> str:
    if awaited is None:
        return "No collective is in flight at the end of the chart."
    inside = [
        rank
        for lane in shared
        if awaited.label in in_flight(lane.lane.spans)
        for rank in lane.ranks
    ]
    outside = [rank for lane in shared if not in_flight(lane.lane.spans) for rank in lane.ranks]
    missing = f" {describe_ranks(outside).capitalize()}: in no collective." if outside else ""
    waiting = describe_ranks(inside).capitalize()
    return f"{waiting}: in {one_line(awaited.label)}, never completed.{missing}"
