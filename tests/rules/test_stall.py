"""Silence, patience, and what tells slow from stuck."""

from __future__ import annotations

import pytest

from holdfast.facts.ranks import Life, Place, Stack
from holdfast.rules import stall
from holdfast.rules.stall import Limits
from tests.rules.tables import LOADER, TRAIN, history, row

LIMITS = Limits()


def test_the_threshold_grows_with_the_steps() -> None:
    assert stall.threshold_s([row(0, step_p99_s=0.02), row(1, step_p99_s=0.03)], LIMITS) == 5.0
    assert stall.threshold_s([row(0, step_p99_s=0.02), row(1, step_p99_s=3.0)], LIMITS) == 30.0
    assert stall.threshold_s([row(0, step_p99_s=None)], LIMITS) == 5.0


def test_who_was_preempted_has_the_time_that_the_scheduler_gives() -> None:
    assert stall.threshold_s([row(0), row(1, preempted=143)], LIMITS) == LIMITS.grace_s == 30.0


def test_a_sleeping_rank_in_the_middle_of_training_has_no_excuse() -> None:
    assert stall.patience(row(2, *history(30), at=LOADER), LIMITS) is None


def test_a_sleeping_rank_for_which_nobody_waits_has_much_time() -> None:
    found = stall.patience(row(2, *history(30), at=LOADER), LIMITS, awaited=False)
    assert found is not None
    assert found.until_s == LIMITS.alone_s


def test_a_rank_that_computes_or_moves_data_is_slow_not_stuck() -> None:
    assert "computing" in stall.patience(row(0, at=TRAIN, cpu_share=0.9), LIMITS).why  # type: ignore[union-attr]
    assert "moves data" in stall.patience(row(0, at=TRAIN, io_bytes=10_000_000), LIMITS).why  # type: ignore[union-attr]


def test_a_stack_that_changes_is_not_stuck() -> None:
    stacks = (Stack((TRAIN,)), Stack((LOADER,)))
    assert "changes" in stall.patience(row(0, stacks=stacks), LIMITS).why  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("frame", "limit"),
    [
        (Place("/env/torch/serialization.py", 900, "_save"), LIMITS.checkpoint_s),
        (Place("/env/torch/distributed/checkpoint/state_dict_saver.py", 1, "save"), LIMITS.checkpoint_s),
        (Place("/job/train.py", 1, "save_checkpoint"), LIMITS.checkpoint_s),
        (Place("/env/torch/_inductor/compile_fx.py", 1, "compile"), LIMITS.compile_s),
        (Place("/job/train.py", 1, "evaluate"), LIMITS.evaluation_s),
        (Place("/job/train.py", 1, "run_validation_epoch"), LIMITS.evaluation_s),
        (Place("/usr/lib/python3.11/subprocess.py", 1, "wait"), LIMITS.checkpoint_s),
    ],
)
def test_the_stack_tells_the_phase(frame: Place, limit: float) -> None:
    stacks = (Stack((frame, TRAIN)), Stack((frame, TRAIN)))
    found = stall.patience(row(0, stacks=stacks), LIMITS)
    assert found is not None
    assert found.until_s == limit


@pytest.mark.parametrize("function", ["train_step", "evaluated_once_retrieval", "medieval", "load", "step"])
def test_other_names_tell_no_phase(function: str) -> None:
    stacks = (Stack((Place("/job/train.py", 1, function),)),) * 2
    assert stall.patience(row(0, stacks=stacks), LIMITS) is None


def test_a_phase_that_the_script_declares_has_its_own_budget() -> None:
    found = stall.patience(row(0, at=TRAIN, phase="export", phase_budget_s=90.0), LIMITS)
    assert found is not None
    assert found.until_s == 90.0


def test_the_first_step_gets_more_time() -> None:
    found = stall.patience(row(0, at=TRAIN, step=None, step_p99_s=None), LIMITS)
    assert found is not None
    assert found.until_s == LIMITS.first_step_s


@pytest.mark.parametrize("life", [Life.STOPPED, Life.DEAD])
def test_there_is_no_patience_with_a_process_that_does_not_run(life: Life) -> None:
    assert stall.patience(row(0, at=TRAIN, life=life, cpu_share=0.9), LIMITS) is None


def test_a_rank_that_waits_for_a_disk_has_the_time_of_what_it_does_and_none_without() -> None:
    def disk(**known: object) -> stall.Patience | None:
        return stall.patience(row(0, at=TRAIN, life=Life.DISK, **known), LIMITS)

    assert disk() is None
    saving, loading, moving = (
        disk(phase="save", phase_budget_s=90.0),
        disk(step=None, step_p99_s=None),
        disk(io_bytes=1 << 26),
    )
    assert (saving and saving.until_s) == 90.0
    assert (loading and loading.until_s) == LIMITS.first_step_s
    assert moving is not None


def test_a_call_that_all_are_in_has_the_time_of_a_first_step_or_a_phase() -> None:
    new = [row(0, step=None, step_p99_s=None), row(1, step=None, step_p99_s=None)]
    first = stall.patience_with_all(new, LIMITS)
    assert first is not None
    assert first.until_s == LIMITS.first_step_s
    saving = stall.patience_with_all([row(0), row(1, phase="save", phase_budget_s=90.0)], LIMITS)
    assert saving is not None
    assert saving.until_s == 90.0
    assert stall.patience_with_all([row(0), row(1)], LIMITS) is None
