"""Which lanes are drawn: ranks that look alike share one, so that 16,384 ranks fit on a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

import msgspec

from holdfast.report.timeline import Lane, Span

#: Spans of a lane that are drawn.
SPANS_IN_VIEW = 64
#: Up to so many ranks, each has a lane of its own even where lanes are alike.
EACH_ITS_OWN = 12
#: Lanes in the picture at most.
LANES_IN_VIEW = 40
#: Of the ranks that a verdict names, so many keep a lane of their own.
NAMED_APART = 8


class SharedLane(msgspec.Struct, frozen=True):
    """A lane as drawn: ``ranks`` and ``hosts`` that it stands for; ``lane`` is the first of them, cut to the view."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    lane: Lane


def view_begin(lanes: Sequence[Lane], begin: float, end: float) -> float:
    """Unix time at which the picture begins: late enough that no lane holds more than SPANS_IN_VIEW spans."""
    full = [lane.spans[-SPANS_IN_VIEW].start for lane in lanes if len(lane.spans) >= SPANS_IN_VIEW]
    first = [lane.spans[0].start for lane in lanes if lane.spans]
    return min(max(begin, max(full, default=min(first, default=begin))), end)


def share_lanes(lanes: Sequence[Lane], named: Collection[int], begin: float) -> tuple[list[SharedLane], int]:
    """Lanes to draw in the order of their ranks, and how many ranks have none because there are too many kinds.

    The ranks in ``named`` (those that the verdict speaks of) keep lanes of their own. The others are put together by
    the finest likeness that leaves few enough: the same calls, then the same calls in flight, the same place, the same
    state.
    """
    apart = set(sorted(named)[:NAMED_APART])
    ordered = sorted(lanes, key=lambda lane: lane.rank)
    for likeness in _LIKENESSES if len(ordered) > EACH_ITS_OWN else (_itself,):
        folds: dict[Hashable, list[Lane]] = {}
        for lane in ordered:
            folds.setdefault(("apart", lane.rank) if lane.rank in apart else likeness(lane), []).append(lane)
        if len(folds) <= LANES_IN_VIEW:
            break
    shared = sorted(folds.values(), key=lambda fold: (fold[0].rank not in apart, -len(fold)))
    drawn = sorted((_shared(fold, begin) for fold in shared[:LANES_IN_VIEW]), key=lambda fold: fold.ranks[0])
    return drawn, sum(len(fold) for fold in shared[LANES_IN_VIEW:])


def _shared(fold: list[Lane], begin: float) -> SharedLane:
    first = fold[0]
    spans = tuple(span for span in first.spans[-SPANS_IN_VIEW:] if span.end is None or span.end > begin)
    hosts = tuple(sorted({lane.host for lane in fold if lane.host}))
    return SharedLane(tuple(lane.rank for lane in fold), hosts, msgspec.structs.replace(first, spans=spans))


def in_flight(spans: Sequence[Span]) -> tuple[str, ...]:
    """Labels of the spans that never completed."""
    return tuple(span.label for span in spans if span.end is None)


def _itself(lane: Lane) -> Hashable:
    return lane.rank


def _same_calls(lane: Lane) -> Hashable:
    # The oldest spans are left out: how far back a ring reaches differs between ranks that are otherwise alike.
    return lane.state, lane.place, tuple((span.label, span.end is None) for span in lane.spans[-SPANS_IN_VIEW // 2 :])


def _same_flight(lane: Lane) -> Hashable:
    return lane.state, lane.place, in_flight(lane.spans)


def _same_place(lane: Lane) -> Hashable:
    return lane.state, lane.place


def _same_state(lane: Lane) -> Hashable:
    return lane.state


_LIKENESSES: tuple[Callable[[Lane], Hashable], ...] = (_same_calls, _same_flight, _same_place, _same_state)
