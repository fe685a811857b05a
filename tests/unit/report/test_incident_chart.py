from __future__ import annotations

import pytest

from holdfast.report.incident_chart import BAR_HEIGHT, WIDTH, draw_chart, family_of
from holdfast.report.timeline import Timeline, TimelineLane, TimelineSpan
from tests.unit.report.sample import STUCK_AT, incident


def test_stuck_rank_has_a_gap_while_others_wait():
    chart = draw_chart(incident().timeline, root=2, named=())
    gaps = [lane.gap for lane in chart.lanes]
    assert [gap is not None for gap in gaps] == [False, False, True, False]
    assert gaps[2].caption == f"never entered all_reduce #{STUCK_AT}"
    assert gaps[2].note.startswith("asleep at ")
    assert gaps[2].x + gaps[2].width == pytest.approx(WIDTH)
    assert [lane.named for lane in chart.lanes] == [False, False, True, False]


def test_calls_in_flight_extend_to_the_right_edge():
    chart = draw_chart(incident().timeline, root=2, named=())
    flying = [bar for lane in chart.lanes for bar in lane.bars if bar.flying]
    assert len(flying) == 3
    for bar in flying:
        assert bar.x + bar.width == pytest.approx(WIDTH, abs=1)
        assert "entered, never completed" in bar.title


def lane_of(rank, *calls):
    """Return a lane: calls are (label, start, end)."""
    spans = tuple(
        TimelineSpan(start, end, label, label.partition(" ")[0]) for label, start, end in calls
    )
    return TimelineLane(rank, "h", spans, "waiting", "/a/b/x.py:1 in f()")


def never_entered(*lanes):
    chart = draw_chart(Timeline(lanes, 0.0, 9.0), root=None, named=())
    return [lane.never_entered for lane in chart.lanes]


def test_mismatched_calls_are_missing_on_the_other_ranks():
    first = ("all_reduce #1", 0.0, 1.0)
    assert never_entered(
        lane_of(0, first, ("broadcast #2", 2.0, None)),
        lane_of(1, first, ("all_reduce #2", 2.1, None)),
        lane_of(2, first, ("all_reduce #2", 2.2, None)),
    ) == ["all_reduce #2", "broadcast #2", "broadcast #2"]


def test_a_rank_outside_a_group_misses_none_of_its_calls():
    assert never_entered(
        lane_of(0, ("all_reduce #1 of tp0", 0.0, 1.0), ("all_reduce #2 of tp0", 2.0, None)),
        lane_of(1, ("all_reduce #1 of tp0", 0.0, 1.0)),
        lane_of(2, ("all_reduce #1 of tp1", 0.0, 1.0)),
    ) == ["", "all_reduce #2 of tp0", ""]


def test_a_transfer_is_missing_on_no_rank():
    assert never_entered(lane_of(0, ("recv #1", 0.0, None)), lane_of(1, ("send #9", 0.0, 1.0))) == [
        "",
        "",
    ]


def test_calls_before_the_first_on_record_are_not_reported_missing():
    assert never_entered(
        lane_of(0, ("all_reduce #7", 1.0, None)), lane_of(1, ("all_reduce #99", 5.0, None))
    ) == ["all_reduce #99", ""]


def test_places_are_short():
    (lane,) = draw_chart(Timeline((lane_of(0),), 0.0, 9.0), root=None, named=()).lanes
    assert lane.place == "x.py:1 in f()"


def test_bars_of_one_label_share_a_key():
    chart = draw_chart(incident().timeline, root=2, named=())
    by_title = {}
    for lane in chart.lanes:
        for bar in lane.bars:
            by_title.setdefault(bar.title.partition(":")[0], set()).add(bar.key)
    assert all(len(keys) == 1 for keys in by_title.values())
    assert len({key for keys in by_title.values() for key in keys}) == len(by_title)


def test_bars_are_inside_their_lane():
    for lane in draw_chart(incident(64).timeline, root=2, named=()).lanes:
        for bar in lane.bars:
            assert bar.x >= 0
            assert bar.x + bar.width <= WIDTH + 1e-9
            assert bar.y >= 0
            assert bar.y + bar.height <= BAR_HEIGHT


def test_overlapping_calls_are_stacked():
    spans = (
        TimelineSpan(0.0, 2.0, "a #1", "all_reduce"),
        TimelineSpan(1.0, 3.0, "a #2", "all_reduce"),
        TimelineSpan(3.0, None, "a #3", "all_reduce"),
    )
    chart = draw_chart(
        Timeline((TimelineLane(0, "h", spans, "waiting", "x.py:1"),), 0.0, 9.0), root=None, named=()
    )
    first, second, last = chart.lanes[0].bars
    assert first.y + first.height < second.y + 1
    assert last.height == BAR_HEIGHT - 1


def test_running_job_has_no_stall_and_no_gaps():
    lanes = tuple(
        TimelineLane(
            rank,
            "h",
            tuple(TimelineSpan(n, n + 0.5, f"all_reduce #{n}", "all_reduce") for n in range(20)),
            "running",
            "",
        )
        for rank in range(2)
    )
    chart = draw_chart(Timeline(lanes, 0.0, 20.0), root=None, named=())
    assert chart.silence is None
    assert not any(lane.gap for lane in chart.lanes)
    assert chart.description == "No collective is in flight at the end of the chart."


def test_description_names_the_ranks():
    description = draw_chart(incident(1024).timeline, root=2, named=()).description
    assert description == (
        "Ranks 0-1,3-1023 (1023 ranks): in all_reduce #31, never completed. Rank 2: in no collective."
    )


def test_empty_timeline_yields_an_empty_chart():
    assert draw_chart(Timeline((), 0.0, 1.0), root=None, named=()).lanes == ()
    (lane,) = draw_chart(
        Timeline((TimelineLane(0, "", (), "dead", ""),), 0.0, 1.0), root=0, named=()
    ).lanes
    assert (lane.name, lane.state, lane.bars) == ("rank 0", "dead", ())


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("all_reduce", "reduce"),
        ("reduce_scatter_tensor", "reduce"),
        ("all_gather_into_tensor", "gather"),
        ("broadcast", "spread"),
        ("scatter", "spread"),
        ("all_to_all_single", "exchange"),
        ("recv", "pair"),
        ("monitored_barrier", "barrier"),
        ("init_process_group", "setup"),
        ("phase", "phase"),
        ("unheard_of", "other"),
    ],
)
def test_operations_of_a_family_share_a_colour(kind, family):
    assert family_of(kind) == family
