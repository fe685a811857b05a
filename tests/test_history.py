"""The file of troubles: what it counts, what it forgets, what is learnt from it, and what strange bytes cost."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import BadValue
from holdfast.history import (
    FORGET_AFTER_RUNS,
    MOST_BYTES,
    MOST_TROUBLES,
    NONE,
    History,
    Trouble,
    learn,
    merged,
    parse,
    sentence,
    worst,
)

GIB = 31


def event(**different):
    """A time-out of one call in which all ranks were."""
    usual = Trouble(
        operation="all_reduce", group="0", size=GIB, phase="training", link="between hosts", site="train.py:41",
        words="all_reduce of 467,019,003 float32", timeouts=1, limit_s=600.0, at_limit=1, bandwidth=0.8e9, call=1,
        at=1e9,
    )  # fmt: skip
    return replace(usual, **different)


def absent(**different):
    return event(absent=1, at_limit=0, limit_s=0.0, **different)


def after(*events, runs_between=1):
    """The history after each event in a run of its own."""
    history = History()
    for number, each in enumerate(events):
        for step in range(runs_between):
            history = history.in_run(f"{number}/{step}")
        history = history.noting(replace(each, call=number))
    return history


def advice(history):
    return worst(learn(each, history.runs) for each in history.troubles)


def test_one_time_out_teaches_nothing_and_two_double_the_limit():
    assert advice(after(event())).least_limit_s == 600
    assert advice(after(event())).reasons == ()
    found = advice(after(event(), event()))
    assert found.least_limit_s == 1200
    assert found.reasons[0] == (
        "limit of all_reduce of 467,019,003 float32 at train.py:41 raised from 10 min 00 s to 20 min 00 s: "
        "2 time-outs in 2 runs took 10 min 00 s or more while bandwidth was 0.8 GB/s"
    )


def test_a_time_out_under_the_longer_limit_counts_anew():
    one_more = after(event(), event(), event(limit_s=1200.0))
    assert advice(one_more).least_limit_s == 1200
    two_more = after(event(), event(), event(limit_s=1200.0), event(limit_s=1200.0))
    assert advice(two_more).least_limit_s == 2400
    shorter = after(event(), event(), event(limit_s=60.0))  # the user's own limit, in between
    assert advice(shorter).least_limit_s == 1200


def test_in_training_a_rank_that_did_not_come_makes_no_limit_longer():
    assert advice(after(*[absent()] * 6)) == NONE


def test_in_evaluation_it_does_and_evaluations_are_left_out():
    late = [event(absent=1, phase="evaluation")] * 2
    found = advice(after(*late))
    assert (found.least_limit_s, found.evaluation_delay, found.chunk_bytes) == (1200, 1, None)
    assert "1 evaluation left out after each: 2 time-outs in 2 runs" in found.reasons[1]
    assert advice(after(*late * 10)).evaluation_delay == 4


def test_what_ended_well_and_late_wants_three_times_as_long():
    slow = event(timeouts=0, at_limit=0, slow=1, longest_s=400.0)
    assert advice(after(slow)).least_limit_s == 1200
    assert advice(after(replace(slow, longest_s=299.0))).least_limit_s == 0


def test_large_calls_that_time_out_with_all_ranks_in_them_are_cut_smaller_and_smaller():
    sizes = [advice(after(*[event()] * count)).chunk_bytes for count in (1, 2, 4, 6, 100)]
    assert sizes == [None, 32 << 20, 16 << 20, 8 << 20, 1 << 20]
    assert advice(after(*[event(size=20)] * 4)).chunk_bytes is None


def test_a_call_that_several_ranks_tell_of_is_one():
    history = History().in_run("a").noting(event(at=1e9)).noting(event(at=1e9 + 3)).noting(event(at=1e9 + 5))
    assert history.troubles[0].timeouts == 1
    assert history.noting(event(at=1e9 + 5, call=2)).troubles[0].timeouts == 2
    assert history.in_run("b").noting(event(at=1e9 + 6)).troubles[0].timeouts == 2


def test_hosts_that_tell_of_the_same_are_merged_not_added():
    one, other = after(event(), event()), after(event())
    both = merged([one, other, History()])
    assert [each.timeouts for each in both.troubles] == [2]
    assert both.runs == 2


def test_what_is_well_for_long_is_forgotten():
    history = after(event(), event())
    for run in range(FORGET_AFTER_RUNS):
        history = history.in_run(f"well {run}")
    assert history.troubles
    assert history.in_run("one more").troubles == ()
    assert history.in_run(history.run) is history


def test_the_file_is_bounded():
    history = History()
    for line in range(2 * MOST_TROUBLES):
        history = history.noting(event(site="s" * 190 + f":{line}", words="w" * 200, group="g" * 200))
    assert len(history.troubles) == MOST_TROUBLES
    assert history.troubles[-1].site.endswith(f":{2 * MOST_TROUBLES - 1}")
    data = msgspec.json.format(msgspec.json.encode(history))
    assert len(data) < MOST_BYTES
    assert parse(data, "x") == history


def forged(**different):
    record = {**msgspec.to_builtins(event()), **different}
    return json.dumps({"schema": "holdfast/history/1", "troubles": [record]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 99, b"[]", b"{", b'{"schema": "holdfast/history/2"}', b"[" * 100_000, b'{"schema": "\xff"}',
        b" " * (MOST_BYTES + 1), forged(timeouts=-1), forged(timeouts=1 << 60), forged(limit_s=-1.0),
        forged(limit_s=1e300), forged(site="x" * 201), forged(size=65), forged(timeouts="many"), forged(site=None),
        json.dumps({"troubles": [msgspec.to_builtins(event())] * (MOST_TROUBLES + 1)}).encode(),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_one_sentence(data):
    with pytest.raises(BadValue) as caught:
        parse(data, "/run/history.json")
    assert "the history /run/history.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.binary(max_size=300))
def test_any_bytes_are_a_history_or_a_sentence(data):
    with suppress(BadValue):
        assert isinstance(parse(data, "x"), History)


_COUNTS = st.integers(0, 1 << 40)
_TIMES = st.floats(0, 1e9)


_FORGED = st.fixed_dictionaries({
    "timeouts": _COUNTS, "absent": _COUNTS, "slow": _COUNTS, "at_limit": _COUNTS, "limit_s": _TIMES,
    "longest_s": _TIMES, "size": st.integers(0, 64), "phase": st.sampled_from(["training", "evaluation"]),
})  # fmt: skip


@given(_FORGED)
def test_whatever_stands_in_the_file_the_advice_is_within_bounds(fields):
    found = learn(event(**fields), 3)
    assert 0 <= found.least_limit_s <= 3e9
    assert found.chunk_bytes is None or 1 << 20 <= found.chunk_bytes <= 32 << 20
    assert 0 <= found.evaluation_delay <= 4
    assert sentence(event(**fields), 3)


def test_the_sentence_for_people():
    history = after(event(), absent(), event(timeouts=0, at_limit=0, slow=1, longest_s=312.0))
    assert sentence(history.troubles[0], history.runs) == (
        "all_reduce of 467,019,003 float32 at train.py:41 (group '0', between hosts, training), in 3 of 3 runs: "
        "2 time-outs (ranks did not come to 1); 1 slow, the longest took 5 min 12 s; "
        "the limit was 10 min 00 s; 0.8 GB/s"
    )
