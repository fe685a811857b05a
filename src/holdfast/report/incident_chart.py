"""Compute the geometry of the incident chart: bars, gaps, ticks. The template only draws them.

Horizontal positions are percentages of a lane, so that the text keeps its size on every screen;
vertical ones are pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from holdfast.core.rank_sets import compress_ranks, describe_ranks
from holdfast.core.text import format_duration, one_line
from holdfast.report.lanes import SharedLane, in_flight, share_lanes, view_begin
from holdfast.report.page_text import clip, short_place
from holdfast.report.time_axis import TimeAxis, make_axis
from holdfast.report.timeline import Timeline, TimelineLane, TimelineSpan

WIDTH = 100.0
BAR_HEIGHT = 32.0
TRACKS = 3
#: Minimum distance between two times below the chart.
TICK_DISTANCE = 9.0
#: Minimum width of an axis break, and of one with its duration.
BREAK_WIDTH = 1.4
NAMED_BREAK_WIDTH = 6.0
#: Maximum number of distinct calls in flight that are compared with the calls of each lane.
MAX_AWAITED = 16
#: Maximum characters of a label, and of a description.
MAX_LABEL = 120
MAX_DETAIL = 240

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
    """One span: position and size, colour class, a ``key`` per label, and texts."""

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
    width: float
    caption: str
    note: str


class ChartLane(msgspec.Struct, frozen=True):
    """The row of a lane; ``named``: the root of the verdict is about it.

    ``never_entered`` is the call that the others wait in and these ranks have not entered;
    ``waiting_in`` holds the calls that they entered and did not complete.
    """

    name: str
    state: str
    place: str
    title: str
    named: bool
    bars: tuple[SpanBar, ...]
    gap: IdleGap | None
    never_entered: str
    waiting_in: tuple[str, ...]


class TimeTick(msgspec.Struct, frozen=True):
    """A time below the chart; ``anchor`` is ``start``, ``middle`` or ``end``."""

    x: float
    text: str
    anchor: str


class IncidentChart(msgspec.Struct, frozen=True):
    """All elements of the chart; ``hidden`` counts ranks without a lane."""

    lanes: tuple[ChartLane, ...]
    shared: tuple[SharedLane, ...]
    ticks: tuple[TimeTick, ...]
    breaks: tuple[tuple[float, float, str], ...]
    silence: float | None
    silence_s: float
    silence_text: str
    legend: tuple[tuple[str, str], ...]
    description: str
    hidden: int = 0


def draw_chart(timeline: Timeline, root: int | None, named: Collection[int]) -> IncidentChart:
    """Return the chart of ``timeline``; ``root`` is highlighted, ``named`` are kept apart."""
    begin = view_begin(timeline.lanes, timeline.begin, timeline.end)
    keep = {*named} | ({root} if root is not None else set())
    shared, hidden = share_lanes(timeline.lanes, keep, begin)
    calls = _awaited_spans(shared)
    awaited = calls[0] if calls else None
    axis = make_axis(
        _event_times(shared), begin, timeline.end, 0.0, WIDTH, stalled=awaited is not None
    )
    keys: dict[str, int] = {}
    lanes = tuple(_chart_lane(lane, axis, calls, root, keys) for lane in shared)
    stalled = axis.last_progress < axis.moments[-1]
    silence_s = timeline.end - axis.last_progress if stalled else 0.0
    return IncidentChart(
        lanes=lanes,
        shared=tuple(shared),
        ticks=_time_ticks(axis, stalled=stalled),
        breaks=_axis_breaks(axis),
        silence=axis.x(axis.last_progress) if stalled else None,
        silence_s=silence_s,
        silence_text=f"no progress for {format_duration(silence_s)}" if stalled else "",
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


def _awaited_spans(shared: Sequence[SharedLane]) -> tuple[TimelineSpan, ...]:
    """Return the calls in flight, each as recorded by the first rank to enter it.

    Those on the most ranks come first.
    """
    flying = [span for lane in shared for span in lane.lane.spans if span.end is None]
    votes = Counter({span.label: 0 for span in flying})
    for lane in shared:
        votes.update({label: len(lane.ranks) for label in in_flight(lane.lane.spans)})
    return tuple(
        min((span for span in flying if span.label == label), key=lambda span: span.start)
        for label, _ in votes.most_common(MAX_AWAITED)
    )


def _chart_lane(
    shared: SharedLane,
    axis: TimeAxis,
    calls: Sequence[TimelineSpan],
    root: int | None,
    keys: dict[str, int],
) -> ChartLane:
    lane, ranks = shared.lane, shared.ranks
    state, place = _short(lane.state), _short(lane.place)
    never_entered = _never_entered(lane, calls)
    return ChartLane(
        name=f"rank{'s' * (len(ranks) > 1)} {compress_ranks(ranks, limit=4)}",
        state=(f"{len(ranks)} ranks, " if len(ranks) > 1 else "") + state,
        place=short_place(place),
        title=f"{describe_ranks(ranks)}, {state}{f' at {place}' if place else ''}",
        named=root is not None and root in ranks,
        bars=_span_bars(lane.spans, axis, keys),
        gap=_idle_gap(lane, axis, calls, never_entered),
        never_entered=never_entered,
        waiting_in=tuple(_short(label) for label in in_flight(lane.spans)),
    )


def _short(text: str) -> str:
    return clip(one_line(text), MAX_LABEL)


def _never_entered(lane: TimelineLane, awaited: Sequence[TimelineSpan]) -> str:
    """Return the first call that other ranks wait in and that ``lane`` should have entered."""
    return next((_short(span.label) for span in awaited if _is_missing(lane, span)), "")


def _is_missing(lane: TimelineLane, span: TimelineSpan) -> bool:
    """Return whether ``lane`` belongs to the group of ``span`` and has no record of that call.

    Labels of the default group name no group. In another group, a rank is a member if it has made
    calls in it. Transfers between two ranks, and calls before the first one on record, say nothing.
    """
    if family_of(span.kind) == "pair" or any(own.label == span.label for own in lane.spans):
        return False
    if in_flight(lane.spans) and lane.spans[0].start > span.start:
        return False
    group = _group_of(span)
    return not group or any(_group_of(own) == group for own in lane.spans)


def _group_of(span: TimelineSpan) -> str:
    return span.label.partition(" of ")[2]


def _span_bars(
    spans: Sequence[TimelineSpan], axis: TimeAxis, keys: dict[str, int]
) -> tuple[SpanBar, ...]:
    tracks = _tracks(spans)
    height = BAR_HEIGHT / (max(tracks, default=0) + 1)
    places = [(track * height, height) for track in tracks]
    if spans and _is_last_alone(spans):
        places[-1] = (0.0, BAR_HEIGHT)
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
    lasted = (
        "entered, never completed" if span.end is None else format_duration(span.end - span.start)
    )
    detail = f", {clip(one_line(span.detail), MAX_DETAIL)}" if span.detail else ""
    return SpanBar(
        x=x,
        y=y,
        width=right - x,
        height=max(height - 1, 2),
        family=family_of(span.kind),
        key=key,
        title=f"{_short(span.label)}: {lasted}{detail}",
        flying=span.end is None,
        caption=_short(span.label) if span.end is None and height > 12 else "",
    )


def _idle_gap(
    lane: TimelineLane, axis: TimeAxis, calls: Sequence[TimelineSpan], never_entered: str
) -> IdleGap | None:
    if not calls or in_flight(lane.spans):
        return None
    last_end = max(
        (span.end for span in lane.spans if span.end is not None), default=axis.moments[0]
    )
    x = axis.x(max(last_end, calls[0].start))
    return IdleGap(
        x,
        axis.places[-1] - x,
        f"never entered {never_entered}" if never_entered else "in no collective",
        " at ".join(part for part in (_short(lane.state), short_place(_short(lane.place))) if part),
    )


def _time_ticks(axis: TimeAxis, *, stalled: bool) -> tuple[TimeTick, ...]:
    zero = axis.last_progress
    split = axis.x(zero)
    wanted = [split * part for part in (0.25, 0.5, 0.75)]
    moments = sorted({axis.moments[0], *(axis.nearest(place) for place in wanted)})
    ticks = [TimeTick(0.0, _format_offset(axis.moments[0] - zero), "start")]
    for moment in moments:
        place = axis.x(moment)
        if min(place - ticks[-1].x, split - place) > TICK_DISTANCE:
            ticks.append(TimeTick(place, _format_offset(moment - zero), "middle"))
    if stalled:
        ticks.append(TimeTick(split, "last progress", "middle"))
    ticks.append(
        TimeTick(WIDTH, _format_offset(axis.moments[-1] - zero) if stalled else "end", "end")
    )
    return tuple(ticks)


def _format_offset(seconds: float) -> str:
    return f"+{format_duration(seconds)}" if seconds > 0 else format_duration(seconds)


def _axis_breaks(axis: TimeAxis) -> tuple[tuple[float, float, str], ...]:
    return tuple(
        (
            gap.left,
            gap.right,
            format_duration(gap.seconds) if gap.right - gap.left > NAMED_BREAK_WIDTH else "",
        )
        for gap in axis.breaks
        if gap.right - gap.left >= BREAK_WIDTH
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
    return f"{waiting}: in {_short(awaited.label)}, never completed.{missing}"
