"""Ranks of which no end was noted: named where others lost them, and never called fine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.facts.ranks import Ended, Life, Raised
from holdfast.findings import Level, Verdict
from holdfast.rules import hang, untold
from tests.rules.tables import call, history, row, world

CLOSED = Raised("RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]:24721", None)
TIMED_OUT = Raised("RuntimeError", "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation", None)
SEEN = Verdict(question="Why?")


def lost(rank, raised=CLOSED):
    """A rank that lost its peer in call 31."""
    failed = replace(call(31, done=True), failed=True)
    return row(rank, *history(30), failed, life=Life.DEAD, raised=raised)


def silent(rank, calls=30):
    return row(rank, *history(calls), life=Life.UNKNOWN)


def judge(*rows):
    return hang.judge(rows, world(len(rows)), world_size=len(rows))


def test_who_did_not_come_to_the_call_that_failed_is_the_one_that_is_gone():
    root = judge(lost(0), silent(1), lost(2), silent(3, 31)).root
    assert (root.cause, root.subject.rank, root.level) == ("peer-lost", 1, Level.ERROR)
    assert "all_reduce #31" in root.message
    assert (root.subject.file, root.subject.line) == ("/job/train.py", 41)


def test_where_all_came_and_several_are_silent_nobody_is_accused():
    verdict = judge(lost(0), silent(1, 31), silent(2, 31))
    assert (verdict.root.cause, verdict.root.level) == ("peer-lost", Level.UNKNOWN)
    assert len(verdict.suspects) == 1


def test_after_a_time_out_the_missing_rank_may_have_lived():
    root = judge(lost(0, TIMED_OUT), silent(1)).root
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", 1)


def test_one_whose_end_is_known_did_not_vanish():
    assert judge(lost(0), row(1, *history(30), life=Life.RUNNING)).root is None


def test_an_end_that_is_not_noted_beside_others_is_not_known():
    ended = row(0, *history(30), life=Life.DEAD, ended=Ended("end of script"))
    verdict = untold.weigh(SEEN, [ended, silent(1)], watched=False)
    assert (verdict.root.cause, verdict.root.level, verdict.root.subject.rank) == ("peer-lost", Level.UNKNOWN, 1)
    assert untold.weigh(SEEN, [ended], watched=False) is SEEN


def test_no_end_at_all_is_unseen():
    verdict = untold.weigh(SEEN, [silent(0), silent(1)], watched=False)
    assert verdict.root is None
    assert "ranks 0-1" in verdict.unseen[0]


@pytest.mark.parametrize("watched", [True, False])
def test_all_in_one_call_may_be_all_killed_in_it_unless_somebody_watched(watched):
    rows = [row(rank, *history(30), call(31), life=Life.UNKNOWN) for rank in range(3)]
    verdict = judge(*rows)
    assert verdict.root.cause == "network-fabric-fault"
    weighed = untold.weigh(verdict, rows, watched=watched)
    assert weighed.root.level == (Level.ERROR if watched else Level.UNKNOWN)


def test_ranks_of_whom_nothing_is_heard_are_told_where_others_lost_them():
    """The host that led is gone, with all that was known of its ranks; another one judges from its own."""
    root = hang.judge([lost(2), lost(3)], world(4), world_size=4).root
    assert (root.cause, root.subject.rank) == ("peer-lost", 0)
    assert root.message.startswith("nothing is heard of ranks 0-1, and others lost their connection in all_reduce #31")
    assert [fact.origin for fact in root.evidence] == ["box of rank 2", "box of rank 3"]
