"""Learned limits: raised and lowered, but never against the settings of the user."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rank_table import GroupProgress, ProcessState, RankState, SourceLine, ThreadStack
from holdfast.watcher.rules.section_limits import SectionSilence, learned_limits, section
from holdfast.watcher.rules.stall import StallLimits

SAVES = ThreadStack((SourceLine("/x/torch/serialization.py", 7, "save"),))


def state(rank=0, **other):
    return RankState(rank=rank, life=ProcessState.RUNNING, **other)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([state()], "setup"),
        ([state(groups={"0": GroupProgress(1, 1)}), state(1)], "first step"),
        ([state(step=3), state(1)], "step"),
        ([state(step=3, phase="checkpoint"), state(1, step=3)], "checkpoint"),
        ([state(step=3, phase="my own")], None),
        ([state(step=3, stacks=(SAVES,))], "checkpoint"),
        ([state(step=3, cpu_share=0.9)], "computing"),
        ([state(cpu_share=0.9)], None),
    ],
)
def test_the_section_of_a_silent_job(ranks, name):
    assert section(ranks) == name


def test_a_long_silence_raises_the_limit():
    assert (
        learned_limits(StallLimits(), {"first step": SectionSilence(100.0, 1)}).first_step_s
        == 500.0
    )
    assert (
        learned_limits(
            StallLimits(), {"setup": SectionSilence(100.0, 1), "first step": SectionSilence(9.0, 5)}
        ).first_step_s
        == 500.0
    )
    assert learned_limits(StallLimits(), {"step": SectionSilence(8.0, 1)}).stall_s == 16.0


def test_pauses_that_ended_raise_the_patience():
    learned = learned_limits(StallLimits(), {"step": SectionSilence(50.0, 1)})
    assert (learned.act_after_s, learned.busy_patience_s) == (150.0, 750.0)
    assert learned_limits(StallLimits(), {"step": SectionSilence(9.0, 1)}).act_after_s == 60.0
    fixed = learned_limits(StallLimits(), {"step": SectionSilence(50.0, 1)}, ("act_after_s",))
    assert fixed.act_after_s == 60.0
    busy = learned_limits(StallLimits(), {"computing": SectionSilence(200.0, 1)})
    assert busy.busy_patience_s == 600.0


def test_repeated_short_checkpoints_lower_the_limit():
    assert (
        learned_limits(StallLimits(), {"checkpoint": SectionSilence(20.0, 2)}).checkpoint_s == 600.0
    )
    assert (
        learned_limits(StallLimits(), {"checkpoint": SectionSilence(20.0, 3)}).checkpoint_s == 100.0
    )
    assert (
        learned_limits(StallLimits(), {"checkpoint": SectionSilence(2.0, 3)}).checkpoint_s == 60.0
    )
    assert learned_limits(StallLimits(), {"first step": SectionSilence(2.0, 99)}) == StallLimits()


def test_limits_set_by_the_user_do_not_change():
    silences_by_section = {"checkpoint": SectionSilence(2.0, 9), "step": SectionSilence(50.0, 9)}
    assert (
        learned_limits(StallLimits(), silences_by_section, ("checkpoint_s", "stall_s"))
        == StallLimits()
    )


@given(
    st.dictionaries(
        st.sampled_from(["setup", "first step", "step", "checkpoint", "evaluation", "other"]),
        st.builds(SectionSilence, st.floats(0, 1e9), st.integers(1, 9)),
    )
)
def test_limits_cover_the_silences_and_are_bounded(silences):
    limits = learned_limits(StallLimits(), silences)
    assert limits.stall_s >= 5
    assert limits.first_step_s >= 60
    assert 60 <= limits.checkpoint_s <= 4 * 3600
    assert 120 <= limits.evaluation_s <= 4 * 3600
    for name, limit_s in (("checkpoint", limits.checkpoint_s), ("evaluation", limits.evaluation_s)):
        assert limit_s >= min(silences.get(name, SectionSilence()).longest_s, 4 * 3600)
