"""The observations of one node, and combining the summaries of nodes."""

from __future__ import annotations

import os
import time

import pytest

from holdfast.core.live_state import NodeReading
from holdfast.core.rank_table import ProcessState, RankState
from holdfast.watcher.agent_messages import StackAnswer, StackQuestion
from holdfast.watcher.job_summary import JobSummary, combine_summaries, unreachable_node
from holdfast.watcher.node import NodeSensor, WorkerProcess


def test_a_rank_that_has_ended_or_runs_elsewhere_has_no_stack(tmp_path):
    node = NodeSensor([WorkerProcess(3, os.getpid(), tmp_path / "rank3.trace")], 8)
    node.set_exit_codes({3: 1})
    for rank in (3, 4):
        answer = node.sample_stack(StackQuestion(rank=rank, nonce="n"))
        assert answer == StackAnswer(nonce="n", why="its process has ended")


@pytest.mark.parametrize(
    ("life", "known"),
    [
        (ProcessState.RUNNING, ProcessState.UNKNOWN),
        (ProcessState.DEAD, ProcessState.DEAD),
        (ProcessState.STOPPED, ProcessState.STOPPED),
    ],
)
def test_ranks_of_an_unreachable_node_have_an_unknown_state(life, known):
    here = JobSummary((RankState(rank=0, life=ProcessState.RUNNING),), {}, 2, 1.0, 20.0)
    there = JobSummary((RankState(rank=1, life=life),), {}, 2, 1.0, 11.0)
    states = combine_summaries([there, here], 20.0, 5.0).ranks
    assert [(state.rank, state.life, state.unseen, state.node_silent_s) for state in states] == [
        (0, ProcessState.RUNNING, (), 0.0),
        (1, known, ("its node last reported 9 s ago",), 9.0),
    ]
    assert [state.life for state in combine_summaries([here, there], 14.0, 5.0).ranks] == [
        ProcessState.RUNNING,
        life,
    ]


def test_the_ranks_of_a_node_that_never_reported_are_silent_with_it() -> None:
    own = JobSummary((RankState(rank=1, life=ProcessState.RUNNING),), {}, 2, 1.0, time.time())
    absent = unreachable_node([0], "10.0.0.1", 2, 9.0)
    first, _ = combine_summaries([own, absent], time.time(), 5.0).ranks
    assert (first.rank, first.host, first.life) == (0, "10.0.0.1", ProcessState.UNKNOWN)
    assert first.node_silent_s >= 9.0


def test_readings_carry_the_node_of_their_ranks():
    states = [RankState(rank=rank, host="vm", life=ProcessState.RUNNING) for rank in range(2)]
    own, other = (
        JobSummary((state,), {}, 2, 1.0, 20.0, agent=agent, nodes=(NodeReading(host="vm"),))
        for state, agent in zip(states, ("a", "b"), strict=True)
    )
    table = combine_summaries([own, other], 20.0, 5.0)
    assert (
        [reading.node for reading in table.nodes]
        == [state.node for state in table.ranks]
        == ["a", "b"]
    )
    alone = combine_summaries([own], 20.0, 5.0)
    assert (alone.nodes[0].node, alone.ranks[0].node) == ("", "")
