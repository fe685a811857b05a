"""The history of timeouts: counting, forgetting, advice, and rejection of invalid files."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.collective_history import (
    FORGET_AFTER_RUNS,
    MAX_BYTES,
    MAX_PROBLEMS,
    CollectiveAdvice,
    CollectiveHistory,
    CollectiveProblem,
    advise,
    combine_advice,
    describe_problem,
    merge_histories,
    parse_history,
)
from holdfast.core.errors import InvalidValue

GIB = 31


def event(**different):
    """Return a timeout of one call that all ranks entered."""
    usual = CollectiveProblem(
        operation="all_reduce",
        group="0",
        size=GIB,
        phase="training",
        link="between hosts",
        site="train.py:41",
        words="all_reduce of 467,019,003 float32",
        timeouts=1,
        limit_s=600.0,
        at_limit=1,
        bandwidth=0.8e9,
        call=1,
        at=1e9,
    )
    return replace(usual, **different)


def absent(**different):
    return event(absent=1, at_limit=0, limit_s=0.0, **different)


def after(*events, runs_between=1):
    """Return the history after these events, each in its own run."""
    history = CollectiveHistory()
    for number, each in enumerate(events):
        for step in range(runs_between):
            history = history.in_run(f"{number}/{step}")
        history = history.noting(replace(each, call=number))
    return history


def advice(history):
    return combine_advice(advise(each, history.runs) for each in history.troubles)


def test_two_timeouts_double_the_limit():
    assert advice(after(event())).least_limit_s == 600
    assert advice(after(event())).reasons == ()
    found = advice(after(event(), event()))
    assert found.least_limit_s == 1200
    assert found.reasons[0] == (
        "timeout of all_reduce of 467,019,003 float32 at train.py:41 raised from 10 min 00 s to "
        "20 min 00 s: 2 timeouts in 2 runs took 10 min 00 s or more while bandwidth was 0.8 GB/s"
    )


def test_timeouts_are_counted_per_limit():
    one_more = after(event(), event(), event(limit_s=1200.0))
    assert advice(one_more).least_limit_s == 1200
    two_more = after(event(), event(), event(limit_s=1200.0), event(limit_s=1200.0))
    assert advice(two_more).least_limit_s == 2400
    shorter = after(event(), event(), event(limit_s=60.0))  # the user's limit lies between them
    assert advice(shorter).least_limit_s == 1200


def test_missing_ranks_in_training_do_not_raise_the_limit():
    assert advice(after(*[absent()] * 6)) == CollectiveAdvice()


def test_missing_ranks_in_evaluation_raise_the_limit_and_skip_evaluations():
    late = [event(absent=1, phase="evaluation")] * 2
    found = advice(after(*late))
    assert (found.least_limit_s, found.evaluation_delay, found.chunk_bytes) == (1200, 1, None)
    assert "1 evaluation skipped after each: 2 timeouts in 2 runs" in found.reasons[1]
    assert advice(after(*late * 10)).evaluation_delay == 4


def test_slow_success_triples_its_duration_as_limit():
    slow = event(timeouts=0, at_limit=0, slow=1, longest_s=400.0)
    assert advice(after(slow)).least_limit_s == 1200
    assert advice(after(replace(slow, longest_s=299.0))).least_limit_s == 0


def test_large_calls_that_time_out_get_smaller_chunks():
    sizes = [advice(after(*[event()] * count)).chunk_bytes for count in (1, 2, 4, 6, 100)]
    assert sizes == [None, 32 << 20, 16 << 20, 8 << 20, 1 << 20]
    assert advice(after(*[event(size=20)] * 4)).chunk_bytes is None


def test_reports_of_one_call_by_several_ranks_count_once():
    history = (
        CollectiveHistory()
        .in_run("a")
        .noting(event(at=1e9))
        .noting(event(at=1e9 + 3))
        .noting(event(at=1e9 + 5))
    )
    assert history.troubles[0].timeouts == 1
    assert history.noting(event(at=1e9 + 5, call=2)).troubles[0].timeouts == 2
    assert history.in_run("b").noting(event(at=1e9 + 6)).troubles[0].timeouts == 2


def test_histories_of_hosts_are_merged_not_added():
    one, other = after(event(), event()), after(event())
    both = merge_histories([one, other, CollectiveHistory()])
    assert [each.timeouts for each in both.troubles] == [2]
    assert both.runs == 2


def test_calls_without_recent_problems_are_forgotten():
    history = after(event(), event())
    for run in range(FORGET_AFTER_RUNS):
        history = history.in_run(f"well {run}")
    assert history.troubles
    assert history.in_run("one more").troubles == ()
    assert history.in_run(history.run) is history


def test_the_file_is_bounded():
    history = CollectiveHistory()
    for line in range(2 * MAX_PROBLEMS):
        history = history.noting(
            event(site="s" * 190 + f":{line}", words="w" * 200, group="g" * 200)
        )
    assert len(history.troubles) == MAX_PROBLEMS
    assert history.troubles[-1].site.endswith(f":{2 * MAX_PROBLEMS - 1}")
    data = msgspec.json.format(msgspec.json.encode(history))
    assert len(data) < MAX_BYTES
    assert parse_history(data, "x") == history


def forged(**different):
    record = {**msgspec.to_builtins(event()), **different}
    return json.dumps({"schema": "holdfast/history/1", "troubles": [record]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 99,
        b"[]",
        b"{",
        b'{"schema": "holdfast/history/2"}',
        b"[" * 100_000,
        b'{"schema": "\xff"}',
        b" " * (MAX_BYTES + 1),
        forged(timeouts=-1),
        forged(timeouts=1 << 60),
        forged(limit_s=-1.0),
        forged(limit_s=1e300),
        forged(site="x" * 201),
        forged(size=65),
        forged(timeouts="many"),
        forged(site=None),
        json.dumps({"troubles": [msgspec.to_builtins(event())] * (MAX_PROBLEMS + 1)}).encode(),
    ],
)
def test_invalid_files_raise_one_sentence(data):
    with pytest.raises(InvalidValue) as caught:
        parse_history(data, "/run/history.json")
    assert "invalid history /run/history.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.binary(max_size=300))
def test_arbitrary_bytes_parse_or_raise(data):
    with suppress(InvalidValue):
        assert isinstance(parse_history(data, "x"), CollectiveHistory)


_COUNTS = st.integers(0, 1 << 40)
_TIMES = st.floats(0, 1e9)


_FORGED = st.fixed_dictionaries(
    {
        "timeouts": _COUNTS,
        "absent": _COUNTS,
        "slow": _COUNTS,
        "at_limit": _COUNTS,
        "limit_s": _TIMES,
        "longest_s": _TIMES,
        "size": st.integers(0, 64),
        "phase": st.sampled_from(["training", "evaluation"]),
    }
)


@given(_FORGED)
def test_advice_is_bounded_for_any_file(fields):
    found = advise(event(**fields), 3)
    assert 0 <= found.least_limit_s <= 3e9
    assert found.chunk_bytes is None or 1 << 20 <= found.chunk_bytes <= 32 << 20
    assert 0 <= found.evaluation_delay <= 4
    assert describe_problem(event(**fields), 3)


def test_describe_problem():
    history = after(event(), absent(), event(timeouts=0, at_limit=0, slow=1, longest_s=312.0))
    assert describe_problem(history.troubles[0], history.runs) == (
        "all_reduce of 467,019,003 float32 at train.py:41 (group '0', between hosts, training), in 3 of 3 runs: "
        "2 timeouts (ranks missing in 1); 1 slow, the longest took 5 min 12 s; "
        "the timeout was 10 min 00 s; 0.8 GB/s"
    )
