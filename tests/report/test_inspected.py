"""Tensors of a checkpoint folded into few lines."""

import io

from hypothesis import given
from hypothesis import strategies as st

from holdfast.report.inspected import SHOWN, Inspected, Line, fold, render_inspected


def lines(*names, shape=(2,)):
    return [Line(name, "float32", shape, 8) for name in names]


def test_layers_of_one_kind_are_one_line():
    found = fold(lines("layers.0.w", "layers.1.w", "layers.2.w", "head"))
    assert [(each.name, each.count, each.size) for each in found] == [("layers.0-2.w", 3, 24), ("head", 1, 8)]


def test_numbers_with_holes_are_a_star():
    assert [each.name for each in fold(lines("a.0.w", "a.2.w"))] == ["a.*.w"]


def test_other_shapes_are_other_lines():
    assert len(fold([*lines("a.0.w"), *lines("a.1.w", shape=(4,))])) == 2


def test_many_kinds_are_folded_by_how_their_names_begin():
    many = lines(*(f"{tower}.part{chr(97 + part)}.{leaf}" for tower in "xy" for part in range(20) for leaf in "wb"))
    found = fold(many)
    assert [(each.name, each.count, each.what) for each in found] == [("x.…", 40, ""), ("y.…", 40, "")]


@given(st.lists(st.from_regex(r"[ab0-9]{1,3}(\.[ab0-9]{1,2}){0,3}", fullmatch=True), unique=True, max_size=60))
def test_no_tensor_is_lost(names):
    assert sum(each.count for each in fold(lines(*names), most=5)) == len(names)


def test_what_is_said_cannot_move_the_cursor():
    out = io.StringIO()
    seen = Inspected(headline="a\x1b[2J", about=(("format", "x\x1b"),), tensors=tuple(lines("w\x1b[0m")),
                     missing=(("missing", "f\n", "w\r"),), notes=("n\x1b",), values=(("k\x1b", "v\x07"),))  # fmt: skip
    render_inspected(seen, file=out)
    render_inspected(seen, file=out, every=True)
    assert "\x1b" not in out.getvalue()
    assert "✗" in out.getvalue()


def test_long_lists_are_cut_and_say_so():
    out = io.StringIO()
    render_inspected(Inspected(headline="h", about=(), tensors=(), notes=("n",) * 100), file=out)
    assert out.getvalue().count("n\n") <= SHOWN + 2
    assert "and 76 more" in out.getvalue()
