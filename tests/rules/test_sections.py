"""Learned limits: longer where the job needs it, shorter where it never does, never against the user's word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.facts.ranks import GroupProgress, Life, Place, RankState, Stack
from holdfast.rules.sections import Silence, learned, section
from holdfast.rules.stall import Limits

SAVES = Stack((Place("/x/torch/serialization.py", 7, "save"),))


def state(rank=0, **other):
    return RankState(rank=rank, life=Life.RUNNING, **other)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([state()], "setup"),
        ([state(groups={"0": GroupProgress(1, 1)}), state(1)], "first step"),
        ([state(step=3), state(1)], "step"),
        ([state(step=3, phase="checkpoint"), state(1, step=3)], "checkpoint"),
        ([state(step=3, phase="my own")], None),
        ([state(step=3, stacks=(SAVES,))], "checkpoint"),
        ([state(step=3, cpu_share=0.9)], None),
    ],
)
def test_what_a_silent_job_is_in(ranks, name):
    assert section(ranks) == name


def test_a_long_silence_that_ended_well_raises_the_limit():
    assert learned(Limits(), {"first step": Silence(100.0, 1)}).first_step_s == 500.0
    assert learned(Limits(), {"setup": Silence(100.0, 1), "first step": Silence(9.0, 5)}).first_step_s == 500.0
    assert learned(Limits(), {"step": Silence(8.0, 1)}).stall_s == 16.0


def test_checkpoints_that_are_short_again_and_again_lower_it():
    assert learned(Limits(), {"checkpoint": Silence(20.0, 2)}).checkpoint_s == 600.0
    assert learned(Limits(), {"checkpoint": Silence(20.0, 3)}).checkpoint_s == 100.0
    assert learned(Limits(), {"checkpoint": Silence(2.0, 3)}).checkpoint_s == 60.0
    assert learned(Limits(), {"first step": Silence(2.0, 99)}) == Limits()


def test_what_the_user_set_stays():
    seen = {"checkpoint": Silence(2.0, 9), "step": Silence(50.0, 9)}
    assert learned(Limits(), seen, ("checkpoint_s", "stall_s")) == Limits()


@given(st.dictionaries(st.sampled_from(["setup", "first step", "step", "checkpoint", "evaluation", "other"]),
                       st.builds(Silence, st.floats(0, 1e9), st.integers(1, 9))))  # fmt: skip
def test_no_limit_is_below_what_was_seen_nor_without_end(silences):
    limits = learned(Limits(), silences)
    assert limits.stall_s >= 5
    assert limits.first_step_s >= 60
    assert 60 <= limits.checkpoint_s <= 4 * 3600
    assert 120 <= limits.evaluation_s <= 4 * 3600
    for name, limit_s in (("checkpoint", limits.checkpoint_s), ("evaluation", limits.evaluation_s)):
        assert limit_s >= min(silences.get(name, Silence()).longest_s, 4 * 3600)
