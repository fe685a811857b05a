"""The log rules on failures of public issue threads; docs/benchmarks.md has the first-run figures.

The lines are written anew in the format that the libraries print; names, hosts and numbers are
invented. ``case.json`` cites the thread, who confirmed the cause, and what fixed it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from benchmarks.diagnose_corpus import HEALTHY, CaseDiagnosis, score_case
from holdfast.causes import by_name

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/case.json"))
#: Failures that the rules still misjudge. Raise no number to let a change pass.
MOST_WRONG_CAUSES, MOST_WRONG_RANKS = 0, 0


@cache
def diagnoses() -> list[CaseDiagnosis]:
    return [score_case(folder) for folder in FOLDERS]


def test_the_cases_cover_the_catalogue_and_cite_their_threads() -> None:
    cases = [json.loads((folder / "case.json").read_text()) for folder in FOLDERS]
    failures = [case for case in cases if case["label"] != HEALTHY]
    assert len(failures) >= 108
    assert len(cases) - len(failures) >= 26
    families = {by_name(case["label"]).family for case in failures}
    assert families == {
        *("ENV", "NET", "GPU", "MEM", "SYNC", "PROC"),
        *("DATA", "CKPT", "CONF", "PERF", "NUM"),
    }
    for case in cases:
        assert all(by_name(name) for name in case["also_acceptable"])
        assert case["thread"].startswith("https://")
        assert case["confirmed_by"]


def test_a_healthy_log_names_no_cause() -> None:
    alarms = [one.name for one in diagnoses() if one.label == HEALTHY and not one.right]
    assert alarms == []


def test_the_causes_and_ranks_of_failures_are_found() -> None:
    found = diagnoses()
    wrong = [f"{one.name}: {one.named[0]}" for one in found if not one.right]
    assert len(wrong) <= MOST_WRONG_CAUSES, wrong
    wrong_ranks = [one.name for one in found if one.rank not in (None, one.named_rank)]
    assert len(wrong_ranks) <= MOST_WRONG_RANKS, wrong_ranks
