from __future__ import annotations

import pytest

from holdfast.report.incident_chart import (
    BAR_HEIGHT,
    GUTTER,
    LANE_HEIGHT,
    WIDTH,
    draw_chart,
    family_of,
)
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


def test_bars_of_one_label_share_a_key():
    chart = draw_chart(incident().timeline, root=2, named=())
    by_title = {}
    for lane in chart.lanes:
        for bar in lane.bars:
            by_title.setdefault(bar.title.partition(":")[0], set()).add(bar.key)
    assert all(len(keys) == 1 for keys in by_title.values())
    assert len({key for keys in by_title.values() for key in keys}) == len(by_title)


def test_bars_are_inside_their_lane():
    lanes = draw_chart(incident(64).timeline, root=2, named=()).lanes
    for row, lane in enumerate(lanes):
        assert lane.y == lanes[0].y + row * LANE_HEIGHT
        for bar in lane.bars:
            assert bar.x >= GUTTER
            assert bar.x + bar.width <= WIDTH + 1.7  # bars have a minimum visible width
            assert lane.y <= bar.y
            assert bar.y + bar.height <= lane.y + LANE_HEIGHT


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
