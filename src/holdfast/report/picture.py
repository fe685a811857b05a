"""The picture of an incident, measured out: which bar lies where. The template draws it and decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from holdfast.report.axis import Axis, make_axis
from holdfast.report.lanes import SharedLane, in_flight, share_lanes, view_begin
from holdfast.report.ranksets import compress_ranks, say_ranks
from holdfast.report.text import duration, one_line
from holdfast.report.timeline import Span, Timeline

WIDTH = 1180.0
GUTTER = 184.0
TOP = 34.0
LANE_HEIGHT = 46.0
BAR_HEIGHT = 30.0
FOOT = 30.0
TRACKS = 3
#: Width of a letter in the units of the picture: of a lane's name, of a caption, and of a note, each set smaller.
NAME_LETTER = 8.4
LETTER = 7.3
SMALL_LETTER = 5.9

#: Families of operations, tried in this order: colour class -> (words in the operation's name, name in the legend).
FAMILIES: dict[str, tuple[tuple[str, ...], str]] = {
    "phase": (("phase", "step"), "phase"),
    "setup": (("init", "new_group", "destroy"), "groups made or ended"),
    "barrier": (("barrier",), "barrier"),
    "exchange": (("all_to_all", "alltoall"), "all-to-all"),
    "reduce": (("reduce",), "reduce"),
    "gather": (("gather",), "gather"),
    "spread": (("broadcast", "scatter"), "broadcast, scatter"),
    "pair": (("send", "recv"), "send, recv"),
}
OTHER = "other"


class Bar(msgspec.Struct, frozen=True):
    """One span: place and size, colour class, a number shared by all bars of one label, and what a person reads."""

    x: float
    y: float
    width: float
    height: float
    family: str
    key: int
    title: str
    flying: bool = False
    caption: str = ""


class Gap(msgspec.Struct, frozen=True):
    """Where a rank is in no collective while others wait: place and size, and two lines of text."""

    x: float
    y: float
    width: float
    height: float
    caption: str
    note: str
    title: str


class LanePicture(msgspec.Struct, frozen=True):
    """A lane's row: its name, state, bars and gap; ``named`` where the verdict's root is about it."""

    y: float
    name: str
    state: str
    title: str
    named: bool
    bars: tuple[Bar, ...]
    gap: Gap | None


class Tick(msgspec.Struct, frozen=True):
    """A time at the foot of the picture; ``anchor`` is SVG's text-anchor."""

    x: float
    text: str
    anchor: str


class Picture(msgspec.Struct, frozen=True):
    """Everything that the template draws, in units of the SVG's view box; ``hidden`` ranks have no lane."""

    width: float
    height: float
    left: float
    right: float
    lanes: tuple[LanePicture, ...]
    shared: tuple[SharedLane, ...]
    ticks: tuple[Tick, ...]
    breaks: tuple[tuple[float, float, str], ...]
    silence: float | None
    silence_text: str
    legend: tuple[tuple[str, str], ...]
    description: str
    hidden: int = 0


def draw(timeline: Timeline, root: int | None, named: Collection[int]) -> Picture:
    """Measure ``timeline`` out. ``root`` is the rank whose lane stands out, ``named`` are ranks to keep apart."""
    begin = view_begin(timeline.lanes, timeline.begin, timeline.end)
    keep = {*named} | ({root} if root is not None else set())
    shared, hidden = share_lanes(timeline.lanes, keep, begin)
    awaited = _awaited(shared)
    axis = make_axis(_events(shared), begin, timeline.end, GUTTER, WIDTH, stalled=awaited is not None)
    keys: dict[str, int] = {}
    lanes = tuple(_lane(lane, TOP + row * LANE_HEIGHT, axis, awaited, root, keys) for row, lane in enumerate(shared))
    stalled = axis.last_progress < axis.moments[-1]
    return Picture(
        width=WIDTH,
        height=TOP + len(shared) * LANE_HEIGHT + FOOT,
        left=GUTTER,
        right=WIDTH,
        lanes=lanes,
        shared=tuple(shared),
        ticks=_ticks(axis, stalled=stalled),
        breaks=_breaks(axis),
        silence=axis.x(axis.last_progress) if stalled else None,
        silence_text=f"no progress for {duration(timeline.end - axis.last_progress)}" if stalled else "",
        legend=_legend(shared),
        description=_description(shared, awaited),
        hidden=hidden,
    )


def family_of(kind: str) -> str:
    """The colour class of an operation's name."""
    for family, (words, _) in FAMILIES.items():
        if any(word in kind for word in words):
            return family
    return OTHER


def _events(shared: Sequence[SharedLane]) -> list[float]:
    spans = [span for lane in shared for span in lane.lane.spans]
    return [span.start for span in spans] + [span.end for span in spans if span.end is not None]


def _awaited(shared: Sequence[SharedLane]) -> Span | None:
    """The call in flight on the most ranks, as the first rank to enter it recorded it."""
    flying = [span for lane in shared for span in lane.lane.spans if span.end is None]
    votes = Counter({span.label: 0 for span in flying})
    for lane in shared:
        votes.update({label: len(lane.ranks) for label in in_flight(lane.lane.spans)})
    if not votes:
        return None
    label = votes.most_common(1)[0][0]
    return min((span for span in flying if span.label == label), key=lambda span: span.start)


def _lane(
    shared: SharedLane, y: float, axis: Axis, awaited: Span | None, root: int | None, keys: dict[str, int]
) -> LanePicture:
    lane = shared.lane
    named = root is not None and root in shared.ranks
    many = len(shared.ranks)
    where = f" at {lane.place}" if lane.place else ""
    return LanePicture(
        y=y,
        name=_beginning(f"rank{'s' * (many > 1)} {compress_ranks(shared.ranks, limit=4)}", NAME_LETTER),
        state=_beginning((f"{many} ranks, " if many > 1 else "") + one_line(lane.state), SMALL_LETTER),
        title=f"{say_ranks(shared.ranks)}, {one_line(lane.state)}{where}",
        named=named,
        bars=_bars(lane.spans, y + (LANE_HEIGHT - BAR_HEIGHT) / 2, axis, keys),
        gap=_gap(shared, y + (LANE_HEIGHT - BAR_HEIGHT) / 2, axis, awaited),
    )


def _bars(spans: Sequence[Span], top: float, axis: Axis, keys: dict[str, int]) -> tuple[Bar, ...]:
    tracks = _tracks(spans)
    height = BAR_HEIGHT / (max(tracks, default=0) + 1)
    places = [(top + track * height, height) for track in tracks]
    if spans and _stands_alone(spans):
        places[-1] = (top, BAR_HEIGHT)
    return tuple(
        _bar(span, y, high, axis, keys.setdefault(span.label, len(keys)))
        for span, (y, high) in zip(spans, places, strict=True)
    )


def _stands_alone(spans: Sequence[Span]) -> bool:
    """Whether the last call is the only one in flight, begun after all others were over: it gets the lane's height."""
    *earlier, last = spans
    return last.end is None and all(span.end is not None and span.end <= last.start for span in earlier)


def _tracks(spans: Sequence[Span]) -> list[int]:
    """Calls that overlap in time (asynchronous ones) lie above each other, on at most TRACKS tracks."""
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


def _bar(span: Span, y: float, height: float, axis: Axis, key: int) -> Bar:
    x = axis.x(span.start)
    right = axis.places[-1] if span.end is None else axis.x(span.end)
    width = max(right - x - 0.8, 1.6)
    lasted = "entered, never completed" if span.end is None else duration(span.end - span.start)
    return Bar(
        x=x,
        y=y,
        width=width,
        height=max(height - 1, 2),
        family=family_of(span.kind),
        key=key,
        title=f"{one_line(span.label)}: {lasted}" + (f", {one_line(span.detail)}" if span.detail else ""),
        flying=span.end is None,
        caption=_fitting(one_line(span.label), width) if span.end is None and height > 12 else "",
    )


def _gap(shared: SharedLane, y: float, axis: Axis, awaited: Span | None) -> Gap | None:
    lane = shared.lane
    if awaited is None or in_flight(lane.spans):
        return None
    entered = any(span.label == awaited.label for span in lane.spans)
    last_end = max((span.end for span in lane.spans if span.end is not None), default=axis.moments[0])
    x = axis.x(max(last_end, awaited.start)) + 1
    width = axis.places[-1] - x
    caption = "in no collective" if entered else f"never entered {one_line(awaited.label)}"
    note = one_line(" at ".join(part for part in (lane.state, lane.place) if part))
    return Gap(
        x,
        y,
        width,
        BAR_HEIGHT,
        _fitting(caption, width, SMALL_LETTER),
        _fitting(note, width, SMALL_LETTER),
        f"{caption}; {note}",
    )


def _fitting(text: str, width: float, letter: float = LETTER) -> str:
    """``text`` as far as it fits; its end is kept, for that is where the line's number stands."""
    letters = int((width - 12) / letter)
    if len(text) <= letters:
        return text
    return "…" + text[len(text) - letters + 1 :] if letters > 8 else ""


def _beginning(text: str, letter: float) -> str:
    """``text`` as far as it fits beside a lane."""
    letters = int((GUTTER - 16) / letter)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _ticks(axis: Axis, *, stalled: bool) -> tuple[Tick, ...]:
    zero = axis.last_progress
    split = axis.x(zero)
    wanted = [GUTTER + (split - GUTTER) * part for part in (0.25, 0.5, 0.75)]
    moments = sorted({axis.moments[0], *(axis.nearest(place) for place in wanted)})
    ticks = [Tick(GUTTER, _relative(axis.moments[0] - zero), "start")]
    for moment in moments:
        if axis.x(moment) - ticks[-1].x > 80 and split - axis.x(moment) > 80:
            ticks.append(Tick(axis.x(moment), _relative(moment - zero), "middle"))
    if stalled:
        ticks.append(Tick(split, "last progress", "middle"))
    ticks.append(Tick(WIDTH, _relative(axis.moments[-1] - zero) if stalled else "end", "end"))
    return tuple(ticks)


def _relative(seconds: float) -> str:
    return f"+{duration(seconds)}" if seconds > 0 else duration(seconds)


def _breaks(axis: Axis) -> tuple[tuple[float, float, str], ...]:
    wide = [gap for gap in axis.breaks if gap.right - gap.left >= 14]
    return tuple((gap.left, gap.right, duration(gap.seconds) if gap.right - gap.left > 44 else "") for gap in wide)


def _legend(shared: Sequence[SharedLane]) -> tuple[tuple[str, str], ...]:
    used = {family_of(span.kind) for lane in shared for span in lane.lane.spans}
    names = {family: name for family, (_, name) in FAMILIES.items()} | {OTHER: "other"}
    return tuple((family, name) for family, name in names.items() if family in used)


def _description(shared: Sequence[SharedLane], awaited: Span | None) -> str:
    if awaited is None:
        return "No collective is in flight at the end of the picture."
    inside = [rank for lane in shared if awaited.label in in_flight(lane.lane.spans) for rank in lane.ranks]
    outside = [rank for lane in shared if not in_flight(lane.lane.spans) for rank in lane.ranks]
    missing = f" {say_ranks(outside).capitalize()}: in no collective." if outside else ""
    return f"{say_ranks(inside).capitalize()}: in {one_line(awaited.label)}, never completed.{missing}"
