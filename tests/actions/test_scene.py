"""What the policy is told beside the verdict."""

from holdfast.actions.scene import scene
from holdfast.facts.node import Summary
from holdfast.facts.ranks import RankState


def table(*hosts):
    ranks = tuple(RankState(rank=rank, host=host, started=5.0) for rank, host in enumerate(hosts))
    return Summary(ranks, {}, len(hosts), 10.0, 15.0)


def test_agents_on_hosts_of_one_name_are_told_apart():
    nodes, agents = {0: 0, 1: 0, 2: 1, 3: 2}, {0: "a1", 1: "b2", 2: "c3"}
    assert scene(table("same", "same", "same", "other"), nodes, agents).namesakes == {0: "a1", 1: "a1", 2: "b2"}
    assert scene(table("x", "x", "y", "z"), nodes, agents).namesakes == {}
    assert scene(table("same", "same", "same", ""), nodes).namesakes == {}
