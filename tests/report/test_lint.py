"""Findings of the linter on a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.report import lint as report


@given(
    path=st.text("ab/", max_size=200),
    words=st.lists(st.text("xyz-", max_size=60), max_size=12),
    width=st.integers(0, 120),
    space=st.booleans(),
)
def test_a_row_is_broken_on_any_terminal(path, words, width, space):
    """However narrow it is, and however long the path: nothing is lost, and it comes to an end."""
    said = " " * space + " ".join(words)
    rows = report.wrapped([(path, "bold"), (said, "")], width)
    assert "".join(text for row in rows for text, _ in row).replace(" ", "") == (path + said).replace(" ", "")
