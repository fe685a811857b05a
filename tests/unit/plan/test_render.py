"""Terminal report and HTML page of a plan: the result comes first and bars are to scale."""

from __future__ import annotations

import io

import pytest

from holdfast.plan.render import page as render_page
from holdfast.plan.render.summary import (
    BAR_COLUMNS,
    GIB,
    PART_DESCRIPTIONS,
    PARTS,
    BatchShare,
    BatchSummary,
    GroupDrawing,
    MemoryBar,
    PlanView,
    ScalePoint,
    StepSummary,
    Suggestion,
    TimeSpan,
    plan_document,
    stacked_cells,
)
from holdfast.report.sheet import draw_document

SMALL = MemoryBar("stage 0", (("optimizer", 30 * GIB), ("parameters", 10 * GIB)), 80 * GIB, "loss")
LARGE = MemoryBar("stage 1", (("optimizer", 60 * GIB), ("activations", 60 * GIB)), 80 * GIB, "loss")
SPEED = StepSummary(
    2.0,
    (TimeSpan("computing", 1.5), TimeSpan("gathering weights", 0.5, 0.25)),
    1000.0,
    125.0,
    0.5,
    "about right",
)


def make_view(**more):
    fields = {
        "model": "m",
        "cluster": "c",
        "fit": "fits",
        "headline": "it fits",
        "setup": (("model", "m"),),
        "bars": (SMALL,),
        "memory_error": "12 %",
    }
    return PlanView(**{**fields, **more})


def render_report(view):
    file = io.StringIO()
    draw_document(plan_document(view), file, 100)
    return file.getvalue()


def test_parts_have_unique_letters_and_descriptions():
    letters = [letter for letter, _ in PARTS.values()]
    assert len(set(letters)) == len(letters)
    assert PART_DESCRIPTIONS.keys() == PARTS.keys()


@pytest.mark.parametrize(
    ("bar", "cells"), [(SMALL, "P" * 5 + "O" * 14), (LARGE, "O" * 29 + "A" * 29)]
)
def test_bar_length_matches_its_parts(bar, cells):
    drawn = "".join(text for text, _ in stacked_cells(bar, 120 * GIB))
    assert drawn.replace("│", "").replace("·", "") == cells
    assert drawn.index("│") == round(80 * BAR_COLUMNS / 120)


def test_report_starts_with_result_and_is_100_columns_wide():
    lines = render_report(
        make_view(
            step=SPEED,
            fit_options=(Suggestion("less", "4 GiB less", "costs time", "holdfast plan m"),),
        )
    ).splitlines()
    assert lines[0] == "✓ it fits"
    assert max(map(len, lines)) <= 100
    assert "              gathering weights  b       500 ms     25%   + 250 ms overlapped" in lines
    assert "                  $ holdfast plan m".strip() in [line.strip() for line in lines]


def test_oversized_bar_exceeds_the_gpu_limit():
    text = render_report(make_view(fit="does not fit", headline="no", bars=(SMALL, LARGE)))
    assert text.startswith("✗ no")
    assert "│AAAA" in text.replace("O│", "│") or "│A" in text


def test_page_escapes_text_and_draws_all_sections():
    batch = BatchSummary(
        64, 3.5, None, (BatchShare("A100", "ranks 0-1", 24, (12, 12), 2.4),), "how"
    )
    page = render_page.plan_page(
        make_view(
            headline="<script>alert(1)</script>",
            bars=(SMALL, LARGE),
            step=SPEED,
            batch=batch,
            curve=(ScalePoint(8, 100.0, 1.0), ScalePoint(16, 150.0, 0.75, "reducing gradients")),
            drawings=(GroupDrawing("Tensor groups", "expected", (0, 0, 1, 1)),),
            world_size=4,
            per_node=2,
        )
    )
    assert "<script>" not in page
    for expected in (
        "equal shares do not fit",
        "reducing gradients",
        "Tensor groups",
        "node 1",
        "12 samples",
        "75%",
    ):
        assert expected in page


def test_bar_segments_are_contiguous():
    (lane,) = render_page.memory_chart((SMALL,)).lanes
    assert [piece.style for piece in lane.segments] == ["parameters", "optimizer"]
    assert lane.segments[0].x + lane.segments[0].width == pytest.approx(lane.segments[1].x, abs=0.2)
    assert lane.segments[1].x + lane.segments[1].width == pytest.approx(lane.end, abs=0.2)
    assert lane.limit > lane.end
    (over,) = render_page.memory_chart((LARGE,)).lanes
    assert (over.over, over.limit < over.end) == (True, True)


def test_gpus_are_coloured_by_group_within_nodes():
    drawn = render_page.rank_map(GroupDrawing("t", "s", tuple(rank // 2 for rank in range(16))), 8)
    assert [len(node.gpus) for node in drawn.nodes] == [8, 8]
    assert [gpu.text for gpu in drawn.nodes[0].gpus] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    for node in drawn.nodes:
        assert all(node.x <= gpu.x <= node.x + drawn.node_width for gpu in node.gpus)


def test_curve_points_are_below_full_efficiency():
    curve = render_page.curve_drawing(
        (ScalePoint(8, 100.0, 1.0), ScalePoint(16, 150.0, 0.75, "why"), ScalePoint(32, 200.0, 0.5))
    )
    ideal = [float(point.split(",")[1]) for point in curve.ideal.split()]
    assert curve.dots[0].y == ideal[0]
    assert all(dot.y > full for dot, full in zip(curve.dots[1:], ideal[1:], strict=True))
    assert [dot.is_bend for dot in curve.dots] == [False, True, False]
