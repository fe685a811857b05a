from __future__ import annotations

import msgspec

from holdfast.report.lanes import MAX_LANES, MAX_SPANS, in_flight, share_lanes, view_begin
from holdfast.report.timeline import TimelineLane, TimelineSpan
from tests.unit.report.sample import START, incident


def lane(
    rank: int, *, state: str = "waiting", place: str = "a.py:1", label: str = "all_reduce #1"
) -> TimelineLane:
    return TimelineLane(
        rank, f"host-{rank // 8}", (TimelineSpan(START, None, label, "all_reduce"),), state, place
    )


def ranks_of(lanes, named=frozenset()):
    shared, hidden = share_lanes(lanes, named, START)
    return [fold.ranks for fold in shared], hidden


def test_few_ranks_have_separate_lanes():
    assert ranks_of([lane(rank) for rank in range(4)]) == ([(0,), (1,), (2,), (3,)], 0)


def test_similar_ranks_share_a_lane():
    timeline = incident(1024).timeline
    folds, hidden = ranks_of(timeline.lanes, {2})
    assert folds == [(0, 1, *range(3, 1024)), (2,)]
    assert hidden == 0


def test_ranks_in_the_verdict_keep_their_lane():
    folds, _ = ranks_of([lane(rank) for rank in range(64)], {5})
    assert folds == [tuple(rank for rank in range(64) if rank != 5), (5,)]


def test_ranks_are_grouped_by_place_if_calls_differ():
    # 64 pairs, each in a group of its own: too many kinds of calls, yet only two places.
    lanes = [
        lane(rank, label=f"all_reduce #1 of tp{rank // 2}", place=f"m.py:{rank % 2}")
        for rank in range(128)
    ]
    folds, hidden = ranks_of(lanes)
    assert folds == [tuple(range(0, 128, 2)), tuple(range(1, 128, 2))]
    assert hidden == 0


def test_lanes_are_limited_and_hidden_ranks_counted():
    lanes = [lane(rank, state=f"state {rank}") for rank in range(100)]
    folds, hidden = ranks_of(lanes, {99})
    assert len(folds) == MAX_LANES
    assert folds[-1] == (99,)
    assert hidden == 100 - MAX_LANES


def test_view_contains_the_last_spans_of_the_busiest_lane():
    spans = tuple(
        TimelineSpan(START + number, START + number + 0.5, f"all_reduce #{number}", "all_reduce")
        for number in range(200)
    )
    busy = TimelineLane(0, "a", spans, "running", "")
    idle = msgspec.structs.replace(busy, rank=1, spans=spans[:1])
    begin = view_begin([busy, idle], START - 100, START + 201)
    assert begin == START + 200 - MAX_SPANS
    shared, _ = share_lanes([busy, idle], set(), begin)
    assert [len(fold.lane.spans) for fold in shared] == [MAX_SPANS, 0]


def test_old_call_in_flight_stays_in_view():
    stuck = TimelineLane(
        0, "a", (TimelineSpan(START - 500, None, "recv #1", "recv"),), "waiting", ""
    )
    ((fold,), _) = share_lanes([stuck], set(), START)
    assert in_flight(fold.lane.spans) == ("recv #1",)
