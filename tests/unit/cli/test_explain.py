"""``holdfast explain``: one cause or all causes, as text and JSON, and errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast import cli
from holdfast.causes import all_causes
from holdfast.causes.process.no_failure import NO_FAILURE

NO_TORCH = """
import sys
sys.modules["torch"] = None
from holdfast.cli import main
main(["explain", *sys.argv[1:]])
"""


def ended(capsys, *arguments):
    """Run the command line; return exit status, stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", *arguments])
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


@pytest.mark.parametrize(
    "name", ["SYNC002", "sync002", "rank-missing-collective", "rank_missing_collective"]
)
def test_explains_a_cause_by_code_and_by_name(capsys, name):
    status, out, err = ended(capsys, name)
    assert (status, err) == (0, "")
    assert out.startswith("SYNC002 rank-missing-collective")
    for label in (
        "what happens",
        "warnings",
        "symptoms",
        "in the logs",
        "blind spots",
        "remedy",
    ):
        assert label in out


def test_explains_a_rule_of_lint_by_its_name(capsys):
    status, out, err = ended(capsys, "hot_loop_sync")
    assert (status, err) == (0, "")
    assert out.startswith("hot-loop-sync (lint rule)")
    for label in ("what it does", "tier", "example", "use instead", "known misses", "PERF010"):
        assert label in out
    assert json.loads(ended(capsys, "hot-loop-sync", "--json")[1])["rule"]["tier"] == "advice"
    assert ended(capsys, "mean-of-local-means")[1].startswith(
        "NUM007"
    )  # a cause with the same name takes precedence


def test_an_unknown_rule_is_rejected_with_a_suggestion(capsys):
    status, out, err = ended(capsys, "hot-loop-sink")
    assert (status, out) == (2, "")
    assert "did you mean hot-loop-sync?" in err


@pytest.mark.parametrize("cause", all_causes(), ids=lambda cause: cause.name)
def test_explains_every_cause(capsys, cause):
    status, out, _ = ended(capsys, cause.code)
    assert status == 0
    unbroken = " ".join(out.split())
    for text in (cause.summary, cause.known_misses):
        assert text in unbroken


def test_lists_all_causes_one_per_line_when_piped(capsys):
    status, out, _ = ended(capsys, "--list")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        [cause.code, cause.name] for cause in all_causes()
    ]


def test_json_of_one_cause(capsys):
    status, out, err = ended(capsys, "SYNC004", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert list(document) == ["schema", "command", "findings", "verdict", "causes"]
    assert (document["schema"], document["command"]) == ("holdfast/1", "explain")
    assert (document["findings"], document["verdict"]) == ([], None)
    (cause,) = document["causes"]
    assert cause["name"] == "rank-guarded-collective"
    assert cause["remedies"][0].keys() == {"text", "command", "safety"}


def test_json_of_all_causes(capsys):
    _, out, _ = ended(capsys, "--list", "--json")
    assert [cause["code"] for cause in json.loads(out)["causes"]] == [
        cause.code for cause in all_causes()
    ]
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rank-stoped"], "did you mean rank-stopped"),
        (["SYNC2"], "did you mean SYNC"),
        (["quux"], "holdfast explain --list"),
        (["quux", "--json"], "holdfast explain --list"),
        ([], "--list"),
        (["SYNC002", "--list"], "--list"),
    ],
    ids=str,
)
def test_wrong_usage_gives_one_sentence_and_status_2(capsys, arguments, message):
    status, out, err = ended(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_works_without_torch():
    program = [sys.executable, "-c", NO_TORCH, "no-failure"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert NO_FAILURE.code in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NCCL_IB_GID_INDEX", ("(nccl)", "RoCE GID table index", "default  -1", "nccl 2.1.4")),
        ("NCCL_TIMEOUT", ("never read", "instead  init_process_group")),
        ("NCCL_TREE_THRESHOLD", ("removed", "removed in 2.5.6")),
        ("NCCL_P2P_LEVEL", ("case-sensitive", "NVL")),
        ("HOLDFAST_RING", ("(holdfast)", "4096")),
        ("OMP_NUM_THREADS", ("when torch is imported",)),
    ],
)
def test_explains_a_variable(capsys, name, words):
    status, out, err = ended(capsys, name)
    assert (status, err) == (0, "")
    assert out.startswith(name)
    assert [word for word in words if word not in " ".join(out.split()) and word not in out] == []


def test_a_misspelled_variable_gets_a_suggestion(capsys):
    status, out, err = ended(capsys, "NCCL_IB_GID_INDX")
    assert (status, out) == (2, "")
    assert "unknown variable 'NCCL_IB_GID_INDX'; did you mean NCCL_IB_GID_INDEX" in err


def test_an_unknown_variable_without_suggestion(capsys):
    status, _, err = ended(capsys, "FOO_BAR")
    assert status == 2
    assert len(err) < 250


def test_a_variable_as_json(capsys):
    row = json.loads(ended(capsys, "NCCL_IB_GID_INDEX", "--json")[1])["variable"]
    assert (row["name"], row["default"]) == ("NCCL_IB_GID_INDEX", "-1")
