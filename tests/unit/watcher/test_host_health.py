"""The monitor of host health."""

import threading
import time

import msgspec
import pytest

from holdfast.core.findings import Finding, Level, Subject, Verdict
from holdfast.host.checks import CheckContext
from holdfast.host.gpus import DriverTimeout
from holdfast.host.gpus import driver as gpu_driver
from holdfast.watcher.host_health import HostHealthMonitor
from holdfast.watcher.job_summary import JobSummary, combine_summaries
from holdfast.watcher.rules.host_health import WATCHED
from tests.unit.host.gpus.recorded import gpu, tree

GPUS = ("gpu-health",)


def test_a_finding_is_reported_once_and_added_to_verdicts(tmp_path):
    health = HostHealthMonitor(
        CheckContext(root=tree(tmp_path, gpu(), gpu(bus="2B", hot="Active"))), 30, GPUS
    )
    health.check()
    (sentence,) = health.new_sentences()
    assert "GPU 1 is thermally throttled" in sentence
    assert sentence.endswith("(GPU008 gpu-throttled)")
    health.check()
    assert health.new_sentences() == []
    verdict = health.add_to(Verdict(question="?"))
    assert [claim.cause for claim in verdict.suspects] == ["gpu-throttled"]
    assert verdict.suspects[0].evidence


def test_a_resolved_finding_is_not_added_to_verdicts(tmp_path):
    health = HostHealthMonitor(CheckContext(root=tree(tmp_path, gpu(hot="Active"))), 30, GPUS)
    health.check()
    (tmp_path / "sys").rename(tmp_path / "old")
    tree(tmp_path, gpu())
    health.check()
    assert health.findings == ()
    assert health.add_to(Verdict(question="?")) == Verdict(question="?")


def test_a_cause_already_in_the_verdict_is_not_added(tmp_path):
    health = HostHealthMonitor(CheckContext(root=tree(tmp_path, gpu(hot="Active"))), 30, GPUS)
    health.check()
    (found,) = health.findings
    verdict = Verdict(question="?", root=found)
    assert health.add_to(verdict) == verdict
    other = Finding(
        code="MEM003",
        cause="host-oom-killed",
        level=Level.WARNING,
        message="x",
        subject=Subject(host="b"),
    )
    assert health.add_to(verdict, [other, other]).suspects == (other, other)


def test_findings_of_other_nodes_reach_the_leader():
    there = Finding(
        code="MEM003",
        cause="host-oom-killed",
        level=Level.WARNING,
        message="x",
        subject=Subject(host="b"),
    )
    encoded = msgspec.msgpack.encode(JobSummary((), {}, 4, 1.0, 2.0, health=(there,)))
    own = JobSummary((), {}, 4, 1.0, 2.0)
    assert combine_summaries(
        [own, msgspec.msgpack.decode(encoded, type=JobSummary)], 2.0, 5.0
    ).health == (there,)


def test_the_thread_checks_periodically_and_stops(tmp_path):
    health = HostHealthMonitor(CheckContext(root=tree(tmp_path, gpu(hot="Active"))), 0.05, GPUS)
    assert health.findings == ()
    health.start()
    health.start()
    until = time.monotonic() + 10
    while not health.findings and time.monotonic() < until:
        time.sleep(0.02)
    assert health.findings
    until = time.monotonic() + 10
    while not health.close() and time.monotonic() < until:
        time.sleep(0.02)
    assert health.close()


def test_a_stuck_driver_is_reported_and_checked_with_backoff(tmp_path, monkeypatch):
    queries = []

    def query(root, limit_s):
        queries.append((root, limit_s))
        return DriverTimeout("the NVIDIA driver did not answer within 15 s")

    monkeypatch.setattr(gpu_driver, "query_driver", query)
    health = HostHealthMonitor(CheckContext(root=tree(tmp_path, gpu())), 0.2, GPUS)
    for _ in range(3):
        health.check()
    assert len(queries) == 1
    time.sleep(0.45)
    health.check()
    assert len(queries) == 2
    time.sleep(0.45)  # the backoff has doubled
    health.check()
    assert len(queries) == 2
    (found,) = health.findings
    assert (found.cause, found.level) == ("gpu-fell-off-bus-xid-ecc", Level.ERROR)


def test_an_interval_of_0_starts_no_thread(tmp_path):
    before = threading.active_count()
    HostHealthMonitor(CheckContext(root=str(tmp_path)), 0, GPUS).start()
    assert threading.active_count() == before


@pytest.mark.parametrize("name", WATCHED)
def test_every_watched_check_can_be_judged_on_this_host(name):
    health = HostHealthMonitor(CheckContext(), 30, (name,))
    health.check()
    assert all(
        claim.subject.host and claim.level in (Level.WARNING, Level.ERROR)
        for claim in health.findings
    )
