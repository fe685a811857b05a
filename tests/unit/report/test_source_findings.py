"""Findings of the linter on a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.report import source_findings as report


@given(
    path=st.text("ab/", max_size=200),
    words=st.lists(st.text("xyz-", max_size=60), max_size=12),
    width=st.integers(0, 120),
    space=st.booleans(),
)
def test_wrapping_keeps_all_text(path, words, width, space):
    """For any width and path length, no text is lost."""
    sentence = " " * space + " ".join(words)
    rows = report.wrap_line([(path, "bold"), (sentence, "")], width)
    assert "".join(text for row in rows for text, _ in row).replace(" ", "") == (
        path + sentence
    ).replace(" ", "")
