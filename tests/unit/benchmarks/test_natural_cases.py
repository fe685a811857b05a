"""The format of natural cases, the score of a verdict, and the programs in tests/faults/natural."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.natural_cases import CaseInvalid, Outcome, read_case, read_cases, score
from benchmarks.natural_faults import HEAD, OWN, main, peer_rank, row, run_limited, totals
from holdfast import causes
from tests.faults.natural_fixes import FIXES, fixed_text

CASES = {case.name: case for case in read_cases(OWN)}
REPAIRED = CASES | {case.name: case for case in read_cases(OWN / "fourth")}

SCRIPT = '''"""Rank 0 alone validates.

More text.
"""
# case: processes=4 ending=hang causes=rank-guarded-collective,store-wait ranks=0,1 framework=ddp args="--epochs 2" limit_s=30

import torch

if rank == 0:  # ALSO
    dist.all_reduce(score)  # GUILTY
'''


def write(folder, text=SCRIPT, name="case.py"):
    path = folder / name
    path.write_text(text)
    return path


def report(
    cause="store-wait", rank=1, line=10, file="/job/case.py", detected_s=7.5
) -> dict[str, Any]:
    root = {
        "cause": cause,
        "message": "rank 1 waits",
        "subject": {"rank": rank, "file": file, "line": line},
    }
    return {
        "verdict": {"root": root},
        "findings": [{**root, "level": "error"}],
        "incidents": [{"detected_s": detected_s}],
    }


WELL = {"verdict": {"root": None}, "findings": [], "incidents": []}


def test_a_script_states_its_case(tmp_path):
    case = read_case(write(tmp_path))
    assert case.name == "case"
    assert case.fault == "Rank 0 alone validates."
    assert (case.processes, case.ending, case.framework) == (4, "hang", "ddp")
    assert case.causes == ("rank-guarded-collective", "store-wait")
    assert case.ranks == (0, 1)
    assert case.args == ("--epochs", "2")
    assert case.limit_s == 30
    assert case.lines == (10, 9)  # the guilty one first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# case: ", "# cases: "),
        ("processes=4 ", ""),
        ("processes=4", "processes=four"),
        ("ending=hang", "ending=freeze"),
        ("ending=hang", "ending=well"),
        (" causes=rank-guarded-collective,store-wait", ""),
        ("Rank 0 alone validates.", ""),
    ],
)
def test_an_incomplete_case_is_refused(tmp_path, old, new):
    path = write(tmp_path, SCRIPT.replace(old, new, 1).replace("\n\nMore text.\n", ""))
    with pytest.raises(CaseInvalid, match=r"case\.py"):
        read_case(path)


def test_a_right_verdict(tmp_path):
    outcome = score(read_case(write(tmp_path)), report(), 1, "suspected hang: no", 20.0)
    assert (outcome.cause_right, outcome.rank_right, outcome.line_right) == (True, True, True)
    assert outcome.right
    assert outcome.suspected
    assert outcome.seconds == 7.5
    assert row(outcome).split() == ["case", "hang", "7.5", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"cause": "port-in-use"}, "cause_right"),
        ({"rank": 2}, "rank_right"),
        ({"line": 7}, "line_right"),
        ({"file": "/torch/distributed.py"}, "line_right"),
        ({"file": None, "line": None}, "line_right"),
    ],
)
def test_a_wrong_verdict(tmp_path, changed, wrong):
    outcome = score(read_case(write(tmp_path)), report(**changed), 1, "", 20.0)
    fields = ("cause_right", "rank_right", "line_right")
    assert {name for name in fields if getattr(outcome, name) is False} == {wrong}
    assert not outcome.right
    assert "WRONG" in row(outcome)
    assert "rank 1 waits" in row(outcome)


def test_what_a_case_does_not_state_is_not_judged(tmp_path):
    text = SCRIPT.replace("ranks=0,1", "ranks=-").replace("  # ALSO", "").replace("  # GUILTY", "")
    outcome = score(read_case(write(tmp_path, text)), report(rank=None, line=3), 1, "", 20.0)
    assert (outcome.cause_right, outcome.rank_right, outcome.line_right) == (True, None, None)
    assert outcome.right


@pytest.mark.parametrize("document", [WELL, {}])
def test_no_verdict_is_wrong(tmp_path, document):
    outcome = score(read_case(write(tmp_path)), document, None, "", 90.0)
    assert (outcome.cause, outcome.cause_right, outcome.rank_right) == (None, False, False)
    assert outcome.seconds == 90.0
    assert "no verdict" in row(outcome)


@pytest.mark.parametrize(
    ("document", "status", "accused"),
    [
        (WELL, 0, False),
        (WELL, 1, True),
        (WELL, None, True),
        (report(), 0, True),
        ({**WELL, "findings": [{"level": "note"}]}, 0, False),
        ({**WELL, "findings": [{"level": "error"}]}, 0, True),
        ({**WELL, "incidents": [{"detected_s": None}]}, 0, True),
    ],
)
def test_a_healthy_job_is_accused_if_it_fails_or_gets_a_verdict(
    tmp_path, document, status, accused
):
    text = '"""Healthy."""\n# case: processes=2 ending=well framework=none\n'
    outcome = score(read_case(write(tmp_path, text)), document, status, "", 5.0)
    assert outcome.accused == accused
    assert outcome.right != accused
    assert ("ACCUSED" in row(outcome)) == accused


def outcome(**changed) -> Outcome:
    fields = {
        "case": "a",
        "ending": "hang",
        "framework": "ddp",
        "status": 1,
        "seconds": 7.0,
        "message": "",
        "cause": "x",
        "cause_right": True,
        "rank_right": True,
        "line_right": True,
    }
    return Outcome(**(fields | changed))


def test_the_totals_count_what_is_judged():
    found = totals(
        [
            outcome(),
            outcome(cause=None, cause_right=False, rank_right=None, line_right=False),
            outcome(ending="crash", peer_rank=2, peer_right=False),
            outcome(ending="well", cause=None, cause_right=None, rank_right=None, line_right=None),
            outcome(ending="well", accused=True, suspected=True),
        ]
    )
    assert found.splitlines() == [
        "verdict given: 2 of 3",
        "cause right: 2 of 3",
        "rank right: 2 of 2",
        "line right: 2 of 3",
        "torchrun's rank right: 0 of 1",
        "all right: 2 of 3",
        "healthy jobs accused: 1 of 2",
        "healthy jobs suspected for a while: 1",
    ]


def test_the_peer_is_the_root_cause_of_torchruns_summary():
    summary = "Failures:\n[1]:\n  rank      : 3\nRoot Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)"
    assert peer_rank(summary) == 1
    assert peer_rank("rank      : 3") is None


def test_an_unknown_case_is_an_error(capsys):
    assert main([str(OWN), "--only", "no_such_case"]) == 2
    assert "no such case" in capsys.readouterr().err


def test_a_launcher_is_limited(tmp_path):
    assert run_limited(["sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path, 60) == (
        3,
        "out\nerr\n",
    )
    status, output = run_limited(["sh", "-c", "echo before; exec sleep 60"], tmp_path, 0.2)
    assert (status, output) == (None, "before\n")


def test_the_head_fits_the_rows():
    assert HEAD.index("cause") == row(outcome()).index("ok")


@pytest.mark.parametrize("name", CASES)
def test_a_natural_case_is_complete(name):
    case, text = CASES[name], (OWN / f"{name}.py").read_text()
    assert set(case.causes) <= {cause.name for cause in causes.all_causes()}
    assert all(0 <= rank < case.processes for rank in case.ranks)
    assert 30 <= len(text.splitlines()) <= 100
    assert "holdfast" not in text
    assert "healthy" not in text.partition("\n")[2]
    assert text.count("# GUILTY") <= 1
    assert name.startswith("healthy_") == (case.ending == "well") == text.startswith('"""Healthy')


@pytest.mark.parametrize("name", sorted(REPAIRED.keys() | FIXES.keys()))
def test_a_fault_can_be_removed(name):
    if REPAIRED[name].ending == "well":
        assert name not in FIXES
    else:
        compile(fixed_text(name), name, "exec")
