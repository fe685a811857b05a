"""From a close look to a verdict: what is only slow is waited for."""

from __future__ import annotations

import pytest

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
