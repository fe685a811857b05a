"""What several hosts saw of one job, put together."""

from __future__ import annotations

import pytest

from holdfast.actions.whole_job import _merge
from holdfast.errors import NoJob
from holdfast.facts.job_samples import Samples
from holdfast.facts.jobs import Job, JobRank
from holdfast.facts.ranks import Place, RankState, Stack
from holdfast.facts.remote import Seen


def seen(host, *ranks, port="29500", world_size=4, numbered=False):
    stack = (Stack((Place(f"/{host}.py", 1, "main"),)),)
    job = Job(
        ranks=tuple(JobRank(rank=rank, pid=100 + rank, start_ticks=1) for rank in ranks),
        world_size=world_size, host=host, script="train.py", address="n0", port=port, numbered=numbered,
    )  # fmt: skip
    samples = Samples(
        ranks=tuple(RankState(rank=rank, host=host) for rank in ranks),
        threads=dict.fromkeys(ranks, stack), world_size=world_size, time=1.0,
    )  # fmt: skip
    return Seen(job, samples)


def test_the_hosts_of_one_job_become_one_table():
    job, samples = _merge([seen("a", 0, 1), seen("b", 2, 3)], ["host c: no answer"], "--hosts a,b,c")
    assert job.host == "a"
    assert [(state.rank, state.host) for state in samples.ranks] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert samples.unseen == ("host c: no answer",)


def test_a_host_that_runs_another_job_is_said():
    _, samples = _merge([seen("a", 0), seen("b", 0, 1, port="1"), seen("c", 2, 3)], [], "--hosts a,b,c")
    assert [state.host for state in samples.ranks] == ["a", "c", "c"]
    (text,) = samples.unseen
    assert text.startswith("host b runs another job: train.py with 2 ranks at port 1")


def test_ranks_that_were_numbered_on_each_host_are_numbered_through():
    parts = [seen(host, 0, 1, world_size=2, numbered=True) for host in "ab"]
    _, samples = _merge(parts, [], "--hosts a,b")
    assert [(state.rank, state.host) for state in samples.ranks] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert samples.world_size == 4
    assert samples.threads[3][0].frames[0].file == "/b.py"


def test_nobody_that_answers_is_an_error_with_all_reasons():
    with pytest.raises(NoJob, match="--hosts a,b: host a: refused; host b: no answer"):
        _merge([], ["host a: refused", "host b: no answer"], "--hosts a,b")
