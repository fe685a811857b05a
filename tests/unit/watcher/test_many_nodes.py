"""The leader of many nodes judges when their summaries arrive."""

from __future__ import annotations

import time

import pytest

from holdfast.core.settings import current_environment
from holdfast.host.checks import CheckContext
from holdfast.watcher import process
from holdfast.watcher.agent_messages import PeerSummaries
from holdfast.watcher.host_health import HostHealthMonitor
from holdfast.watcher.job_summary import JobSummary, encode_summary
from holdfast.watcher.limit_learning import LimitLearner
from holdfast.watcher.live_writer import LiveWriter
from holdfast.watcher.process import MANY_PEERS, NodeWatcher
from holdfast.watcher.rules.stall import StallLimits


@pytest.fixture
def watcher() -> NodeWatcher:
    health = HostHealthMonitor(CheckContext(environ=current_environment()), 0.0)
    return NodeWatcher(LimitLearner(StallLimits()), health, LiveWriter(0.0), 0.0)


def receive(watcher: NodeWatcher, nodes: int, at: float) -> None:
    summary = JobSummary((), {}, 8, at, at, agent="a")
    list(
        watcher.handle(
            PeerSummaries(summaries=dict.fromkeys(range(nodes), encode_summary(summary)))
        )
    )


def test_the_leader_of_many_nodes_waits_for_news_at_most_a_second(
    watcher: NodeWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(process.time, "monotonic", lambda: now)
    receive(watcher, MANY_PEERS, time.time())
    assert watcher._is_due()
    assert not watcher._is_due()
    receive(watcher, MANY_PEERS, time.time() + 1)
    assert watcher._is_due()
    now = 101.0
    assert watcher._is_due()


def test_the_leader_of_few_nodes_judges_at_every_tick(watcher: NodeWatcher) -> None:
    receive(watcher, MANY_PEERS - 1, time.time())
    assert watcher._is_due()
    assert watcher._is_due()
