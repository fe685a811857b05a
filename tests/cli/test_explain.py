"""``holdfast explain``: one cause, all causes, as text and as JSON, and what a mistake gets."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast import cli
from holdfast.rules.causes import CAUSES, by_name

NO_TORCH = """
import sys
sys.modules["torch"] = None
from holdfast.cli import main
main(["explain", *sys.argv[1:]])
"""


def ended(capsys, *arguments):
    """Exit status, stdout and stderr of one call."""
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", *arguments])
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


@pytest.mark.parametrize("asked", ["SYNC002", "sync002", "rank-missing-collective", "rank_missing_collective"])
def test_explains_a_cause_by_code_and_by_name(capsys, asked):
    status, out, err = ended(capsys, asked)
    assert (status, err) == (0, "")
    assert out.startswith("SYNC002 rank-missing-collective")
    for label in ("what happens", "shows before", "shows during", "shows after", "known misses", "remedy"):
        assert label in out


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_explains_every_cause(capsys, cause):
    status, out, _ = ended(capsys, cause.code)
    assert status == 0
    unbroken = " ".join(out.split())
    for text in (cause.summary, cause.known_misses):
        assert text in unbroken


def test_lists_all_causes_one_a_line_when_piped(capsys):
    status, out, _ = ended(capsys, "--list")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()] == [[cause.code, cause.name] for cause in CAUSES]


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
    assert [cause["code"] for cause in json.loads(out)["causes"]] == [cause.code for cause in CAUSES]
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_a_mistake_gets_a_sentence_and_status_2(capsys, arguments, said):
    status, out, err = ended(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_works_where_torch_is_not_installed():
    program = [sys.executable, "-c", NO_TORCH, "no-failure"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert by_name("no-failure").code in done.stdout
