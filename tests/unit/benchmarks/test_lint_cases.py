"""The recall on programs written without knowledge of the linter is as documented in docs/lint.md."""

from pathlib import Path

import pytest

from benchmarks import lint_cases

CASES = Path(lint_cases.OWN)


@pytest.mark.parametrize(
    ("folder", "exact", "flagged", "innocent"),
    [
        ("unseen", 34, 0, 2),
        ("second", 26, 0, 0),
        ("third", 36, 1, 0),
        ("fourth", 33, 1, 0),
        ("fifth", 24, 0, 0),
        ("sixth", 8, 3, 1),
    ],
)
def test_recall_is_as_documented(folder, exact, flagged, innocent, capsys):
    assert lint_cases.main([str(CASES / folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = {
        line.partition(":")[0]: line.partition(": ")[2].split() for line in lines if ": " in line
    }
    overall = next(line.split() for line in lines if line.startswith("all "))
    assert int(overall[2]) >= exact, lines
    assert int(counts["fixed versions flagged"][0]) <= flagged, lines
    assert int(counts["negatives flagged"][0]) <= innocent, lines
