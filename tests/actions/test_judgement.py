"""From a close look to a verdict: what is only slow is waited for."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from holdfast.actions.judgement import Judgement
from holdfast.facts.node import Summary
from holdfast.rules.stall import Limits
from tests.rules.tables import LOADER, call, row

LIMITS = Limits()


def judged_after(silent_s, **late):
    """The outcome where rank 1 waits in init_process_group for rank 0, which has made no call yet."""
    early = row(1, call(1, "init_process_group", group="init_process_group"), step=None, step_p99_s=None)
    ranks = (row(0, at=LOADER, step=None, step_p99_s=None, **late), early)
    return Judgement(LIMITS).decide(Summary(ranks, {}, 2, silent_since=0.0, time=silent_s), silent_s)


@pytest.mark.parametrize("busy", [{"cpu_share": 0.9}, {"io_bytes": 10_000_000}])
def test_a_rank_that_still_imports_is_waited_for(busy):
    assert judged_after(6.0, **busy).verdict is None
    assert "rank 0 has not come to init_process_group" in judged_after(300.0, **busy).note


def test_a_rank_that_sleeps_before_it_joins_has_the_time_of_a_first_step():
    assert judged_after(LIMITS.first_step_s - 1).verdict is None
    root = judged_after(LIMITS.first_step_s + 1).verdict.root
    assert (root.cause, root.subject.rank) == ("store-wait", 0)


class Lint:
    """Stands for the linter beside the job."""

    def __init__(self, under_way):
        self.is_under_way = under_way

    def begin(self, ranks):
        pass

    def hints(self, _wait_s):
        return ()


def parted():
    """Two ranks that are in other collectives of the same number."""
    ranks = (row(0, call(1, "barrier"), at=LOADER), row(1, call(1, "all_reduce"), at=LOADER))
    return Summary(ranks, {}, 2, silent_since=time.time() - 60, time=time.time())


def test_a_verdict_is_kept_while_the_source_is_linted(monkeypatch):
    judgement, table = Judgement(Limits(stall_s=1.0, first_step_s=1.0)), parted()
    lint = Lint(under_way=True)
    monkeypatch.setattr(judgement, "_lint", lint)
    monkeypatch.setattr("holdfast.actions.judgement.BETWEEN_SAMPLES_S", 0.0)
    for _ in range(3):
        assert judgement.consider(table, lambda: table, lambda mine: mine).verdict is None
    lint.is_under_way = False
    outcome = judgement.consider(table, lambda: table, lambda mine: mine)
    assert outcome.verdict.root.cause == "mismatched-operation"
    assert outcome.silent_s > 59
    assert judgement.consider(table, lambda: table, lambda mine: mine).verdict is None  # it is said once


def test_a_job_that_goes_on_while_its_source_is_linted_is_no_hang(monkeypatch):
    judgement, table = Judgement(Limits(stall_s=1.0, first_step_s=1.0)), parted()
    lint = Lint(under_way=True)
    monkeypatch.setattr(judgement, "_lint", lint)
    monkeypatch.setattr("holdfast.actions.judgement.BETWEEN_SAMPLES_S", 0.0)
    for _ in range(3):
        judgement.consider(table, lambda: table, lambda mine: mine)
    lint.is_under_way = False
    later = replace(table, silent_since=time.time())
    assert judgement.consider(later, lambda: later, lambda mine: mine).verdict is None
