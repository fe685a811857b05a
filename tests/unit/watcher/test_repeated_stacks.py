"""The line of work that never ends, from many stacks of one rank."""

from __future__ import annotations

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.watcher.repeated_stacks import MIN_SAMPLES, RepeatedStacks

MAIN = SourceLine("/job/train.py", 52, "main")
EPISODE = SourceLine("/job/train.py", 34, "successful_episode")


def rollout(line):
    return SourceLine("/job/train.py", line, "rollout")


def steady(*stacks):
    repeated = RepeatedStacks()
    for frames in stacks:
        repeated.add(ThreadStack(tuple(reversed(frames))))
    return repeated.steady_lines()


def test_the_call_around_varying_lines_is_found():
    varying = [(MAIN, EPISODE, rollout(20 + at % 5)) for at in range(10)]
    assert steady(*varying) == (EPISODE, rollout(24))
    assert steady(*varying, (MAIN, SourceLine("/job/train.py", 35, "successful_episode"))) == (
        EPISODE,
        rollout(24),
    )


def test_one_long_call_is_found():
    assert steady(*[(MAIN, rollout(23))] * MIN_SAMPLES) == (rollout(23),)


def test_library_frames_and_few_samples_are_ignored():
    library = SourceLine("/x/site-packages/torch/nn/modules/module.py", 9, "call")
    assert steady(*[(MAIN, library)] * MIN_SAMPLES) == (MAIN,)
    assert steady(*[(MAIN, EPISODE)] * (MIN_SAMPLES - 1)) == ()
    assert steady(*[()] * MIN_SAMPLES) == ()


def test_samples_from_before_an_advance_are_forgotten():
    repeated = RepeatedStacks()
    for _ in range(MIN_SAMPLES):
        repeated.add(ThreadStack((MAIN,)))
    repeated.clear()
    assert repeated.steady_lines() == ()
