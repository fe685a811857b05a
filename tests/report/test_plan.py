"""A plan as it is shown: bars are as long as what they stand for, and the sheet says the answer first."""

from __future__ import annotations

import io

import pytest

from holdfast.report import plan_page
from holdfast.report.plan import (
    BAR,
    GIB,
    MEANING,
    PARTS,
    Bar,
    Choice,
    Dealt,
    Drawn,
    Point,
    Share,
    Shown,
    Span,
    Speed,
    document,
    stacked,
)
from holdfast.report.sheet import draw

SMALL = Bar("stage 0", (("optimizer", 30 * GIB), ("parameters", 10 * GIB)), 80 * GIB, "loss")
LARGE = Bar("stage 1", (("optimizer", 60 * GIB), ("activations", 60 * GIB)), 80 * GIB, "loss")
SPEED = Speed(2.0, (Span("computing", 1.5), Span("gathering weights", 0.5, 0.25)), 1000.0, 125.0, 0.5, "about right")


def shown(**more):
    given = {"model": "m", "cluster": "c", "answer": "fits", "headline": "it fits", "setup": (("model", "m"),),
             "bars": (SMALL,), "memory_error": "12 %"}  # fmt: skip
    return Shown(**{**given, **more})


def sheet(seen):
    file = io.StringIO()
    draw(document(seen), file, 100)
    return file.getvalue()


def test_every_part_has_a_letter_of_its_own_and_a_meaning():
    letters = [letter for letter, _ in PARTS.values()]
    assert len(set(letters)) == len(letters)
    assert MEANING.keys() == PARTS.keys()


@pytest.mark.parametrize(("bar", "cells"), [(SMALL, "P" * 5 + "O" * 14), (LARGE, "O" * 29 + "A" * 29)])
def test_a_bar_is_as_long_as_its_parts(bar, cells):
    drawn = "".join(text for text, _ in stacked(bar, 120 * GIB))
    assert drawn.replace("│", "").replace("·", "") == cells
    assert drawn.index("│") == round(80 * BAR / 120)


def test_the_sheet_begins_with_the_answer_and_is_100_columns_wide():
    lines = sheet(
        shown(speed=SPEED, fixes=(Choice("less", "4 GiB less", "costs time", "holdfast plan m"),))
    ).splitlines()
    assert lines[0] == "✓ it fits"
    assert max(map(len, lines)) <= 100
    assert "              gathering weights  b       500 ms    25 %   and 250 ms hidden" in lines
    assert "                  $ holdfast plan m".strip() in [line.strip() for line in lines]


def test_what_does_not_fit_is_red_and_longer_than_the_gpu():
    text = sheet(shown(answer="does not fit", headline="no", bars=(SMALL, LARGE)))
    assert text.startswith("✗ no")
    assert "│AAAA" in text.replace("O│", "│") or "│A" in text


def test_the_page_escapes_and_draws_all():
    dealt = Dealt(64, 3.5, None, (Share("A100", "ranks 0-1", 24, (12, 12), 2.4),), "how")
    page = plan_page.page(shown(
        headline="<script>alert(1)</script>", bars=(SMALL, LARGE), speed=SPEED, dealt=dealt,
        curve=(Point(8, 100.0, 1.0), Point(16, 150.0, 0.75, "reducing gradients")),
        drawn=(Drawn("Tensor groups", "said", (0, 0, 1, 1)),), world=4, per_node=2,
    ))  # fmt: skip
    assert "<script>" not in page
    for said in ("equal shares do not fit", "reducing gradients", "Tensor groups", "node 1", "12 samples", "75%"):
        assert said in page


def test_pieces_of_a_lane_follow_each_other_to_its_end():
    (lane,) = plan_page.memory((SMALL,)).lanes
    assert [piece.kind for piece in lane.pieces] == ["parameters", "optimizer"]
    assert lane.pieces[0].x + lane.pieces[0].width == pytest.approx(lane.pieces[1].x, abs=0.2)
    assert lane.pieces[1].x + lane.pieces[1].width == pytest.approx(lane.end, abs=0.2)
    assert lane.limit > lane.end
    (over,) = plan_page.memory((LARGE,)).lanes
    assert (over.over, over.limit < over.end) == (True, True)


def test_gpus_of_a_group_have_one_colour_and_stand_in_their_node():
    drawn = plan_page.drawing(Drawn("t", "s", tuple(rank // 2 for rank in range(16))), 8)
    assert [len(node.gpus) for node in drawn.nodes] == [8, 8]
    assert [gpu.text for gpu in drawn.nodes[0].gpus] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    for node in drawn.nodes:
        assert all(node.x <= gpu.x <= node.x + drawn.node_width for gpu in node.gpus)


def test_points_of_a_curve_lie_below_full_efficiency():
    found = plan_page.curve((Point(8, 100.0, 1.0), Point(16, 150.0, 0.75, "why"), Point(32, 200.0, 0.5)))
    ideal = [float(place.split(",")[1]) for place in found.ideal.split()]
    assert found.dots[0].y == ideal[0]
    assert all(dot.y > full for dot, full in zip(found.dots[1:], ideal[1:], strict=True))
    assert [dot.bent for dot in found.dots] == [False, True, False]
