"""Source lines of a finding, and line wrapping on a terminal."""

from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.core.findings import Fact, Subject, make_finding
from holdfast.report import source_excerpts
from holdfast.report.source_findings import location_sort_key, parse_location, wrap_line


def rows(*facts, source):
    claim = make_finding(
        RANK_GUARDED_COLLECTIVE,
        "said",
        subject=Subject(file="a.py", line=3),
        evidence=tuple(Fact(text=text, origin=origin) for origin, text in facts),
    )
    return [
        "".join(text for text, _ in row)
        for row in source_excerpts.excerpt_rows(claim, "a.py:3", source, "red")
    ]


def test_cited_code_is_marked_with_a_caption():
    source = {"a.py:3": "    save(x)", "a.py:2": "if main:", "bb.py:10": "main = get_rank() == 0"}
    facts = [
        ("a.py:2", "if main"),
        ("bb.py:10", "get_rank() differs (rank)"),
        ("c.py:1", "there it enters barrier"),
    ]
    assert rows(*facts, source=source) == [
        "    a.py:2   | if main:",
        "             | ^^^^^^^ condition",
        "    bb.py:10 | main = get_rank() == 0",
        "             |        ^^^^^^^^^^ differs (rank)",
        "    a.py:3   | save(x)",
        "             | ^^^^^^^ here",
        "    c.py:1: there it enters barrier",
    ]


def test_text_is_wrapped_between_words_and_code_is_not():
    row = [("a.py:3", "bold"), (": ", "dim"), ("one two three four five six seven eight nine", "")]
    broken = ["".join(text for text, _ in line) for line in wrap_line(row, 40)]
    assert broken == ["a.py:3: one two three four five six", "    seven eight nine"]
    code = [("a.py:3", "cyan"), source_excerpts.GUTTER, ("x = " + "1 + " * 50, "")]
    assert list(wrap_line(code, 40)) == [code]


def test_locations_are_parsed_and_sorted_by_number():
    assert parse_location("a:b.py:12") == ("a:b.py", 12)
    assert parse_location("n.ipynb:cell 3:line 4") == ("n.ipynb:cell 3", 4)
    assert parse_location("<stdin>") == ("<stdin>", 0)
    assert location_sort_key("n.ipynb:cell 2", 9) < location_sort_key("n.ipynb:cell 10", 1)
