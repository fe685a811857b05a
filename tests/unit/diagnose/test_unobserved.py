"""Ranks without a recorded end: named if others lost them, and never reported as healthy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Level, Verdict
from holdfast.core.rank_table import ProcessState, RaisedException, ScriptEnd
from holdfast.diagnose import unobserved
from holdfast.watcher.rules import hang
from tests.unit.watcher.rank_tables import call, history, row, world

CLOSED = RaisedException(
    "RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]:24721", None
)
TIMED_OUT = RaisedException(
    "RuntimeError", "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation", None
)
SEEN = Verdict(question="Why?")


def lost(rank, raised=CLOSED):
    """Return a rank that lost its peer in call 31."""
    failed = replace(call(31, done=True), failed=True)
    return row(rank, *history(30), failed, life=ProcessState.DEAD, raised=raised)


def silent(rank, calls=30):
    return row(rank, *history(calls), life=ProcessState.UNKNOWN)


def judge(*rows):
    return hang.judge_hang(rows, world(len(rows)), world_size=len(rows))


def test_the_rank_missing_from_the_failed_call_is_lost():
    root = judge(lost(0), silent(1), lost(2), silent(3, 31)).root
    assert (root.cause, root.subject.rank, root.level) == ("peer-lost", 1, Level.ERROR)
    assert "all_reduce #31" in root.message
    assert (root.subject.file, root.subject.line) == ("/job/train.py", 41)


def test_no_rank_is_blamed_if_all_entered_and_several_are_silent():
    verdict = judge(lost(0), silent(1, 31), silent(2, 31))
    assert (verdict.root.cause, verdict.root.level) == ("peer-lost", Level.UNKNOWN)
    assert len(verdict.suspects) == 1


def test_after_a_timeout_the_missing_rank_may_be_alive():
    root = judge(lost(0, TIMED_OUT), silent(1)).root
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", 1)


def test_a_rank_with_a_known_state_is_not_lost():
    assert judge(lost(0), row(1, *history(30), life=ProcessState.RUNNING)).root is None


def test_a_missing_end_next_to_recorded_ones_is_unknown():
    ended = row(0, *history(30), life=ProcessState.DEAD, ended=ScriptEnd("end of script"))
    verdict = unobserved.weigh_unobserved(SEEN, [ended, silent(1)], stall_observed=False)
    assert (verdict.root.cause, verdict.root.level, verdict.root.subject.rank) == (
        "peer-lost",
        Level.UNKNOWN,
        1,
    )
    assert unobserved.weigh_unobserved(SEEN, [ended], stall_observed=False) is SEEN


def test_no_recorded_end_at_all_is_unseen():
    verdict = unobserved.weigh_unobserved(SEEN, [silent(0), silent(1)], stall_observed=False)
    assert verdict.root is None
    assert "ranks 0-1" in verdict.unseen[0]


@pytest.mark.parametrize("observed", [True, False])
def test_ranks_stuck_in_one_call_may_all_be_killed_unless_the_stall_was_observed(observed):
    rows = [row(rank, *history(30), call(31), life=ProcessState.UNKNOWN) for rank in range(3)]
    verdict = judge(*rows)
    assert verdict.root.cause == "collective-incomplete"
    weighed = unobserved.weigh_unobserved(verdict, rows, stall_observed=observed)
    assert weighed.root.level == (Level.ERROR if observed else Level.UNKNOWN)


def test_ranks_without_data_are_lost_if_others_lost_their_connection():
    """The leading host and its data are lost; another host judges from its own ranks."""
    root = hang.judge_hang([lost(2), lost(3)], world(4), world_size=4).root
    assert (root.cause, root.subject.rank) == ("peer-lost", 0)
    assert root.message.startswith(
        "no data from ranks 0-1; other ranks lost their connection in all_reduce #31"
    )
    assert [fact.origin for fact in root.evidence] == ["trace of rank 2", "trace of rank 3"]
