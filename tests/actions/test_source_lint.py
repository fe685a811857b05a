"""The source of a job that went wrong is linted beside it, and no failure of that reaches the verdict."""

from __future__ import annotations

import time

import pytest

from holdfast.actions.source_lint import Order, SourceLint, look
from holdfast.facts.ranks import Place
from tests.rules.tables import call, row

BAD = """\
import torch
import torch.distributed as dist


def log(value):
    dist.all_reduce(value)


if dist.get_rank() == 0:
    log(torch.ones(1))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BAD)
    return path


def state(path, line=6):
    return row(0, call(1, site=Place(str(path), line, "log")), started=time.time() + 9)


def test_a_hint_has_the_lines_of_the_finding(script):
    (hint,) = look(Order((str(script),), time.time() + 9))
    assert (hint.rule, hint.kind, hint.finding.code) == ("rank-guarded-collective", "branch", "SYNC004")
    assert [each.line for each in (hint.place, hint.guard, hint.call, *hint.path)] == [10, 9, 6, 10, 6]
    assert not hint.creates


def test_it_is_linted_in_a_process_of_its_own(script):
    lint = SourceLint()
    lint.begin([state(script)])
    (hint,) = lint.hints(20)
    assert hint.place.line == 10
    assert not lint.is_under_way


def test_nothing_of_the_jobs_folder_is_imported(script, monkeypatch):
    (script.parent / "resource.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.chdir(script.parent)
    lint = SourceLint()
    lint.begin([state(script)])
    assert lint.hints(20)


def test_it_can_be_switched_off(script, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LINT", "off")
    lint = SourceLint()
    lint.begin([state(script)])
    assert not lint.is_under_way
    assert lint.hints(1) == ()


def test_nothing_is_started_where_there_is_no_source(tmp_path):
    lint = SourceLint()
    lint.begin([state(tmp_path / "gone.py"), state("<stdin>")])
    assert not lint.is_under_way
    assert lint.hints(1) == ()


def test_what_takes_too_long_is_ended(script):
    lint = SourceLint(0.05)
    lint.begin([state(script)])
    assert lint.hints(20) == ()
    assert not lint.is_under_way


def test_what_is_no_python_gives_nothing(script):
    script.write_text("print 'x'\n")
    lint = SourceLint()
    lint.begin([state(script)])
    assert lint.hints(20) == ()
