"""Folding tensors of a checkpoint into few lines."""

import io

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ckpt.render.inspection import (
    SHOWN,
    InspectionView,
    TensorLine,
    fold_tensors,
    render_inspection,
)


def lines(*names, shape=(2,)):
    return [TensorLine(name, "float32", shape, 8) for name in names]


def test_equal_layers_are_folded():
    found = fold_tensors(lines("layers.0.w", "layers.1.w", "layers.2.w", "head"))
    assert [(each.name, each.count, each.size) for each in found] == [
        ("layers.0-2.w", 3, 24),
        ("head", 1, 8),
    ]


def test_non_contiguous_numbers_become_a_star():
    assert [each.name for each in fold_tensors(lines("a.0.w", "a.2.w"))] == ["a.*.w"]


def test_shapes_are_not_folded_together():
    assert len(fold_tensors([*lines("a.0.w"), *lines("a.1.w", shape=(4,))])) == 2


def test_folding_by_prefix():
    many = lines(
        *(
            f"{tower}.part{chr(97 + part)}.{leaf}"
            for tower in "xy"
            for part in range(20)
            for leaf in "wb"
        )
    )
    found = fold_tensors(many)
    assert [(each.name, each.count, each.what) for each in found] == [
        ("x.…", 40, ""),
        ("y.…", 40, ""),
    ]


@given(
    st.lists(
        st.from_regex(r"[ab0-9]{1,3}(\.[ab0-9]{1,2}){0,3}", fullmatch=True),
        unique=True,
        max_size=60,
    )
)
def test_folding_keeps_all_tensors(names):
    assert sum(each.count for each in fold_tensors(lines(*names), most=5)) == len(names)


def test_control_characters_are_escaped():
    out = io.StringIO()
    view = InspectionView(
        headline="a\x1b[2J",
        about=(("format", "x\x1b"),),
        tensors=tuple(lines("w\x1b[0m")),
        missing=(("missing", "f\n", "w\r"),),
        notes=("n\x1b",),
        values=(("k\x1b", "v\x07"),),
    )
    render_inspection(view, file=out)
    render_inspection(view, file=out, every=True)
    assert "\x1b" not in out.getvalue()
    assert "✗" in out.getvalue()


def test_long_lists_are_truncated():
    out = io.StringIO()
    render_inspection(
        InspectionView(headline="h", about=(), tensors=(), notes=("n",) * 100), file=out
    )
    assert out.getvalue().count("n\n") <= SHOWN + 2
    assert "and 76 more" in out.getvalue()
