from __future__ import annotations

import msgspec

from holdfast.report.lanes import LANES_IN_VIEW, SPANS_IN_VIEW, in_flight, share_lanes, view_begin
from holdfast.report.timeline import Lane, Span
from tests.report.sample import START, incident


def lane(rank: int, *, state: str = "waiting", place: str = "a.py:1", label: str = "all_reduce #1") -> Lane:
    return Lane(rank, f"host-{rank // 8}", (Span(START, None, label, "all_reduce"),), state, place)


def ranks_of(lanes, named=frozenset()):
    shared, hidden = share_lanes(lanes, named, START)
    return [fold.ranks for fold in shared], hidden


def test_a_few_ranks_have_a_lane_each_even_where_alike():
    assert ranks_of([lane(rank) for rank in range(4)]) == ([(0,), (1,), (2,), (3,)], 0)


def test_ranks_that_look_alike_share_a_lane():
    timeline = incident(1024).timeline
    folds, hidden = ranks_of(timeline.lanes, {2})
    assert folds == [(0, 1, *range(3, 1024)), (2,)]
    assert hidden == 0


def test_ranks_that_the_verdict_names_stay_apart_even_where_alike():
    folds, _ = ranks_of([lane(rank) for rank in range(64)], {5})
    assert folds == [tuple(rank for rank in range(64) if rank != 5), (5,)]


def test_where_calls_differ_too_much_the_place_decides():
    # 64 pairs, each in a group of its own: too many kinds of calls, yet only two places.
    lanes = [lane(rank, label=f"all_reduce #1 of tp{rank // 2}", place=f"m.py:{rank % 2}") for rank in range(128)]
    folds, hidden = ranks_of(lanes)
    assert folds == [tuple(range(0, 128, 2)), tuple(range(1, 128, 2))]
    assert hidden == 0


def test_never_more_lanes_than_fit_and_what_is_left_out_is_counted():
    lanes = [lane(rank, state=f"state {rank}") for rank in range(100)]
    folds, hidden = ranks_of(lanes, {99})
    assert len(folds) == LANES_IN_VIEW
    assert folds[-1] == (99,)
    assert hidden == 100 - LANES_IN_VIEW


def test_the_view_holds_the_last_spans_of_the_busiest_lane():
    spans = tuple(
        Span(START + number, START + number + 0.5, f"all_reduce #{number}", "all_reduce") for number in range(200)
    )
    busy = Lane(0, "a", spans, "running", "")
    idle = msgspec.structs.replace(busy, rank=1, spans=spans[:1])
    begin = view_begin([busy, idle], START - 100, START + 201)
    assert begin == START + 200 - SPANS_IN_VIEW
    shared, _ = share_lanes([busy, idle], set(), begin)
    assert [len(fold.lane.spans) for fold in shared] == [SPANS_IN_VIEW, 0]


def test_a_call_in_flight_stays_in_view_however_old():
    stuck = Lane(0, "a", (Span(START - 500, None, "recv #1", "recv"),), "waiting", "")
    ((fold,), _) = share_lanes([stuck], set(), START)
    assert in_flight(fold.lane.spans) == ("recv #1",)
