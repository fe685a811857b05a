"""The job snapshot for the recovery policy."""

from holdfast.core.rank_table import RankState
from holdfast.watcher.job_state import build_job_state
from holdfast.watcher.job_summary import JobSummary


def table(*hosts):
    ranks = tuple(RankState(rank=rank, host=host, started=5.0) for rank, host in enumerate(hosts))
    return JobSummary(ranks, {}, len(hosts), 10.0, 15.0)


def test_agents_on_hosts_with_one_name_are_distinguished():
    nodes, agents = {0: 0, 1: 0, 2: 1, 3: 2}, {0: "a1", 1: "b2", 2: "c3"}
    assert build_job_state(table("same", "same", "same", "other"), nodes, agents).namesakes == {
        0: "a1",
        1: "a1",
        2: "b2",
    }
    assert build_job_state(table("x", "x", "y", "z"), nodes, agents).namesakes == {}
    assert build_job_state(table("same", "same", "same", ""), nodes).namesakes == {}
