"""The linter process: its failures do not affect the verdict."""

from __future__ import annotations

import time

import pytest

from holdfast.core.rank_table import SourceLine
from holdfast.lint.source_hints_worker import find_source_hints
from holdfast.watcher.source_lint import LintOrder, SourceLint
from tests.unit.watcher.rank_tables import call, row

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
    return row(0, call(1, site=SourceLine(str(path), line, "log")), started=time.time() + 9)


def test_a_hint_has_the_lines_of_the_finding(script):
    (hint,) = find_source_hints(LintOrder((str(script),), time.time() + 9))
    assert (hint.rule, hint.kind, hint.finding.code) == (
        "rank-guarded-collective",
        "branch",
        "SYNC004",
    )
    assert [each.line for each in (hint.place, hint.guard, hint.call, *hint.path)] == [
        10,
        9,
        6,
        10,
        6,
    ]
    assert not hint.creates


def test_the_linter_runs_in_a_separate_process(script):
    lint = SourceLint()
    lint.start([state(script)])
    (hint,) = lint.hints(20)
    assert hint.place.line == 10
    assert not lint.is_running


def test_modules_in_the_jobs_folder_are_not_imported(script, monkeypatch):
    (script.parent / "resource.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.chdir(script.parent)
    lint = SourceLint()
    lint.start([state(script)])
    assert lint.hints(20)


def test_the_linter_can_be_disabled(script, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LINT", "off")
    lint = SourceLint()
    lint.start([state(script)])
    assert not lint.is_running
    assert lint.hints(1) == ()


def test_no_process_is_started_without_source(tmp_path):
    lint = SourceLint()
    lint.start([state(tmp_path / "gone.py"), state("<stdin>")])
    assert not lint.is_running
    assert lint.hints(1) == ()


def test_the_linter_ends_at_its_time_limit(script):
    lint = SourceLint(0.05)
    lint.start([state(script)])
    assert lint.hints(20) == ()
    assert not lint.is_running


def test_invalid_python_gives_no_hints(script):
    script.write_text("print 'x'\n")
    lint = SourceLint()
    lint.start([state(script)])
    assert lint.hints(20) == ()
