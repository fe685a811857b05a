"""What is known of a job from the summaries of its nodes."""

from __future__ import annotations

import pytest

from holdfast.facts.node import Summary, combine
from holdfast.facts.ranks import Life, RankState


@pytest.mark.parametrize(
    ("life", "known"), [(Life.RUNNING, Life.UNKNOWN), (Life.DEAD, Life.DEAD), (Life.STOPPED, Life.STOPPED)]
)
def test_nobody_knows_whether_the_ranks_of_a_silent_node_live(life, known):
    here = Summary((RankState(rank=0, life=Life.RUNNING),), {}, 2, 1.0, 20.0)
    there = Summary((RankState(rank=1, life=life),), {}, 2, 1.0, 11.0)
    states = combine([there, here], 20.0, 5.0).ranks
    assert [(state.rank, state.life, state.unseen) for state in states] == [
        (0, Life.RUNNING, ()), (1, known, ("its node last reported 9 s ago",)),
    ]  # fmt: skip
    assert [state.life for state in combine([here, there], 14.0, 5.0).ranks] == [Life.RUNNING, life]
