"""Lines of code below a finding, and rows that are broken between words on a terminal."""

from holdfast.findings import Fact, Subject, finding
from holdfast.report import excerpts
from holdfast.report.lint import order, placed, wrapped
from holdfast.rules.causes import by_name


def rows(*facts, source):
    claim = finding(
        by_name("rank-guarded-collective"),
        "said",
        subject=Subject(file="a.py", line=3),
        evidence=tuple(Fact(text=text, origin=origin) for origin, text in facts),
    )
    return ["".join(text for text, _ in row) for row in excerpts.of(claim, "a.py:3", source, "red")]


def test_what_is_said_is_marked_in_its_line():
    source = {"a.py:3": "    save(x)", "a.py:2": "if main:", "bb.py:10": "main = get_rank() == 0"}
    facts = [("a.py:2", "if main"), ("bb.py:10", "get_rank() differs (rank)"), ("c.py:1", "there it enters barrier")]
    assert rows(*facts, source=source) == [
        "    a.py:2   | if main:",
        "             | ^^^^^^^ the test",
        "    bb.py:10 | main = get_rank() == 0",
        "             |        ^^^^^^^^^^ differs (rank)",
        "    a.py:3   | save(x)",
        "             | ^^^^^^^ here",
        "    c.py:1: there it enters barrier",
    ]


def test_a_row_is_broken_between_words_and_code_is_left_whole():
    row = [("a.py:3", "bold"), (": ", "dim"), ("one two three four five six seven eight nine", "")]
    broken = ["".join(text for text, _ in line) for line in wrapped(row, 40)]
    assert broken == ["a.py:3: one two three four five six", "    seven eight nine"]
    code = [("a.py:3", "cyan"), excerpts.GUTTER, ("x = " + "1 + " * 50, "")]
    assert list(wrapped(code, 40)) == [code]


def test_places_are_read_back_and_sorted_by_number():
    assert placed("a:b.py:12") == ("a:b.py", 12)
    assert placed("n.ipynb:cell 3:line 4") == ("n.ipynb:cell 3", 4)
    assert placed("<stdin>") == ("<stdin>", 0)
    assert order("n.ipynb:cell 2", 9) < order("n.ipynb:cell 10", 1)
