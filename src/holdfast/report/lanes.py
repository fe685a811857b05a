"""Choose the lanes of the incident chart: similar ranks share one, so 16,384 ranks fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

import msgspec

from holdfast.report.timeline import TimelineLane, TimelineSpan

#: Maximum spans drawn per lane.
MAX_SPANS = 64
#: Up to this many ranks, each rank has its own lane.
MAX_SEPARATE_RANKS = 12
#: Maximum number of lanes.
MAX_LANES = 40
#: Maximum number of ranks in the verdict that keep their own lane.
MAX_NAMED_RANKS = 8


class SharedLane(msgspec.Struct, frozen=True):
    """A lane of ``ranks`` on ``hosts``; ``lane`` is that of the first rank, in the drawn range."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    lane: TimelineLane


def view_begin(lanes: Sequence[TimelineLane], begin: float, end: float) -> float:
    """Return the begin of the chart (Unix s), so that no lane has more than MAX_SPANS spans."""
    full = [lane.spans[-MAX_SPANS].start for lane in lanes if len(lane.spans) >= MAX_SPANS]
    first = [lane.spans[0].start for lane in lanes if lane.spans]
    return min(max(begin, max(full, default=min(first, default=begin))), end)


def share_lanes(
    lanes: Sequence[TimelineLane], named: Collection[int], begin: float
) -> tuple[list[SharedLane], int]:
    """Return the lanes by rank, and the number of ranks without a lane because of MAX_LANES.

    The ranks in ``named`` (those in the verdict) keep their own lanes. The others are grouped by
    the finest key that yields few enough lanes: equal calls, equal calls in flight, equal source
    line, equal state.
    """
    separate = set(sorted(named)[:MAX_NAMED_RANKS])
    ordered = sorted(lanes, key=lambda lane: lane.rank)
    for grouping_key in _GROUPINGS if len(ordered) > MAX_SEPARATE_RANKS else (_by_rank,):
        folds: dict[Hashable, list[TimelineLane]] = {}
        for lane in ordered:
            folds.setdefault(
                ("separate", lane.rank) if lane.rank in separate else grouping_key(lane), []
            ).append(lane)
        if len(folds) <= MAX_LANES:
            break
    shared = sorted(folds.values(), key=lambda fold: (fold[0].rank not in separate, -len(fold)))
    drawn = sorted(
        (_shared(fold, begin) for fold in shared[:MAX_LANES]), key=lambda fold: fold.ranks[0]
    )
    return drawn, sum(len(fold) for fold in shared[MAX_LANES:])


def _shared(fold: list[TimelineLane], begin: float) -> SharedLane:
    first = fold[0]
    spans = tuple(span for span in first.spans[-MAX_SPANS:] if span.end is None or span.end > begin)
    hosts = tuple(sorted({lane.host for lane in fold if lane.host}))
    return SharedLane(
        tuple(lane.rank for lane in fold), hosts, msgspec.structs.replace(first, spans=spans)
    )


def in_flight(spans: Sequence[TimelineSpan]) -> tuple[str, ...]:
    """Return the labels of the spans that never completed."""
    return tuple(span.label for span in spans if span.end is None)


def _by_rank(lane: TimelineLane) -> Hashable:
    return lane.rank


def _by_calls(lane: TimelineLane) -> Hashable:
    # Without the oldest spans: ring buffers of otherwise equal ranks reach back differently.
    return (
        lane.state,
        lane.place,
        tuple((span.label, span.end is None) for span in lane.spans[-MAX_SPANS // 2 :]),
    )


def _by_calls_in_flight(lane: TimelineLane) -> Hashable:
    return lane.state, lane.place, in_flight(lane.spans)


def _by_place(lane: TimelineLane) -> Hashable:
    return lane.state, lane.place


def _by_state(lane: TimelineLane) -> Hashable:
    return lane.state


_GROUPINGS: tuple[Callable[[TimelineLane], Hashable], ...] = (
    _by_calls,
    _by_calls_in_flight,
    _by_place,
    _by_state,
)
