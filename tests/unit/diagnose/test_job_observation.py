"""Combining the observations of one job from several hosts."""

from __future__ import annotations

import pytest

from holdfast.core.errors import NoJob
from holdfast.core.rank_table import RankState, SourceLine, ThreadStack
from holdfast.diagnose.attach.job_observation import _combine_hosts
from holdfast.diagnose.attach.jobs import HostJob, JobRank
from holdfast.diagnose.attach.remote import HostObservation
from holdfast.diagnose.stacks.job_samples import JobSamples


def observe(host, *ranks, port="29500", world_size=4, numbered=False):
    stack = (ThreadStack((SourceLine(f"/{host}.py", 1, "main"),)),)
    job = HostJob(
        ranks=tuple(JobRank(rank=rank, pid=100 + rank, start_ticks=1) for rank in ranks),
        world_size=world_size,
        host=host,
        script="train.py",
        address="n0",
        port=port,
        numbered=numbered,
    )
    samples = JobSamples(
        ranks=tuple(RankState(rank=rank, host=host) for rank in ranks),
        threads=dict.fromkeys(ranks, stack),
        world_size=world_size,
        time=1.0,
    )
    return HostObservation(job, samples)


def test_hosts_of_one_job_become_one_table():
    job, samples, _ = _combine_hosts(
        [observe("a", 0, 1), observe("b", 2, 3)], ["host c: no answer"], "--hosts a,b,c"
    )
    assert job.host == "a"
    assert [(state.rank, state.host) for state in samples.ranks] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert samples.unseen == ("host c: no answer",)


def test_host_with_another_job_is_unseen():
    _, samples, _ = _combine_hosts(
        [observe("a", 0), observe("b", 0, 1, port="1"), observe("c", 2, 3)], [], "--hosts a,b,c"
    )
    assert [state.host for state in samples.ranks] == ["a", "c", "c"]
    (text,) = samples.unseen
    assert text.startswith("host b runs another job: train.py with 2 ranks at port 1")


def test_ranks_numbered_per_host_are_renumbered():
    parts = [observe(host, 0, 1, world_size=2, numbered=True) for host in "ab"]
    _, samples, _ = _combine_hosts(parts, [], "--hosts a,b")
    assert [(state.rank, state.host) for state in samples.ranks] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert samples.world_size == 4
    assert samples.threads[3][0].frames[0].file == "/b.py"


def test_no_reply_is_an_error_with_all_reasons():
    with pytest.raises(NoJob, match="--hosts a,b: host a: refused; host b: no answer"):
        _combine_hosts([], ["host a: refused", "host b: no answer"], "--hosts a,b")
