"""The log rules on sets of logs by authors who had not read the rules of their causes.

``docs/benchmarks.md`` has the first-run figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diagnose_corpus import HEALTHY, score_case

HERE = Path(__file__).parent
#: Folder, failures and logs in it, and what the rules still misjudge: causes, ranks, false alarms.
#: Raise no number to let a change pass.
SETS = [
    ("public_logs_second", (96, 122), (3, 1, 0)),
    ("written_logs", (151, 234), (2, 0, 0)),
]


@pytest.mark.parametrize(("folder", "counts", "wrong_at_most"), SETS)
def test_the_causes_and_ranks_of_failures_are_found_and_healthy_logs_name_none(
    folder: str, counts: tuple[int, int], wrong_at_most: tuple[int, int, int]
) -> None:
    found = [score_case(path.parent) for path in sorted((HERE / folder).glob("*/case.json"))]
    failures = [one for one in found if one.label != HEALTHY]
    assert (len(failures), len(found)) == counts
    wrong = [f"{one.name}: {one.named[0]}" for one in failures if not one.right]
    wrong_ranks = [one.name for one in failures if one.rank not in (None, one.named_rank)]
    alarms = [one.name for one in found if one.label == HEALTHY and not one.right]
    for names, most in zip((wrong, wrong_ranks, alarms), wrong_at_most, strict=True):
        assert len(names) <= most, names
