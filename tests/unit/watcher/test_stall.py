"""Silence, time extensions, and slow versus stuck ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.rank_table import ProcessState, SourceLine, ThreadStack
from holdfast.watcher.rules import stall
from holdfast.watcher.rules.stall import StallLimits
from tests.unit.watcher.rank_tables import LOADER, TRAIN, history, row

LIMITS = StallLimits()


def test_the_threshold_scales_with_the_step_time() -> None:
    assert stall.threshold_s([row(0, step_p99_s=0.02), row(1, step_p99_s=0.03)], LIMITS) == 5.0
    assert stall.threshold_s([row(0, step_p99_s=0.02), row(1, step_p99_s=3.0)], LIMITS) == 30.0
    assert stall.threshold_s([row(0, step_p99_s=None)], LIMITS) == 5.0


def test_preempted_ranks_get_the_grace_period() -> None:
    assert stall.threshold_s([row(0), row(1, preempted=143)], LIMITS) == LIMITS.grace_s == 30.0


def test_a_sleeping_rank_during_training_gets_no_extension() -> None:
    assert stall.extension(row(2, *history(30), at=LOADER), LIMITS) is None


@pytest.mark.parametrize(
    "cause",
    [
        "rank-missing-collective",
        "file-io-blocked",
        "rank-uninterruptible-io",
        "dataloader-worker-died",
        "network-fabric-fault",
        "stalled-outside-collectives",
        "store-wait",
        "master-unreachable",
        "python-lock-held",
        "stale-build-lock",
        "peer-lost",
    ],
)
def test_causes_that_may_recover_are_acted_on_after_a_minute(cause: str) -> None:
    ranks = [row(0, at=LOADER), row(1)]
    assert stall.act_after_s(cause, ranks, LIMITS) == 60.0
    assert stall.act_after_s(cause, ranks, StallLimits(act_after_s=5.0)) == 5.0


@pytest.mark.parametrize(
    "cause",
    [
        "rank-stopped",
        "rank-killed",
        "rank-exits-early",
        "uneven-inputs",
        "rank-guarded-collective",
        "mismatched-operation",
        "mismatched-shape",
        "collective-order-inversion",
        "p2p-without-partner",
        "rank-skips-collective",
        "new-group-by-some-ranks",
    ],
)
def test_causes_that_cannot_recover_are_acted_on_at_once(cause: str) -> None:
    assert stall.act_after_s(cause, [row(0), row(1)], LIMITS) == 0.0


def test_a_stopped_rank_is_waited_for_if_the_job_cannot_be_restarted() -> None:
    ranks = [row(0), row(1)]
    assert stall.act_after_s("rank-stopped", ranks, LIMITS, may_restart=False) == 60.0
    assert stall.act_after_s("rank-killed", ranks, LIMITS, may_restart=False) == 0.0


def test_a_preempted_job_is_acted_on_at_once() -> None:
    assert (
        stall.act_after_s("rank-missing-collective", [row(0), row(1, preempted=143)], LIMITS) == 0.0
    )


def test_a_rank_that_no_rank_waits_for_gets_half_an_hour() -> None:
    found = stall.extension(row(2, *history(30), at=LOADER), LIMITS, is_awaited=False)
    assert found is not None
    assert found.until_s == LIMITS.alone_s


def test_a_rank_that_computes_or_moves_data_is_not_stuck() -> None:
    assert "computing" in stall.extension(row(0, at=TRAIN, cpu_share=0.9), LIMITS).why  # type: ignore[union-attr]
    assert "moves data" in stall.extension(row(0, at=TRAIN, io_bytes=10_000_000), LIMITS).why  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "frame",
    [
        SourceLine("/usr/lib/python3.11/subprocess.py", 1, "wait"),
        SourceLine("/usr/lib/python3.11/http/client.py", 286, "_read_status"),
    ],
)
def test_a_wait_for_the_outside_gets_the_patience_from_its_last_byte(frame: SourceLine) -> None:
    stacks = (ThreadStack((frame, TRAIN)),) * 2
    idle = stall.extension(row(0, stacks=stacks, progress=100.0), LIMITS)
    assert idle is not None
    assert idle.until_s == LIMITS.act_after_s
    moved = stall.extension(row(0, stacks=stacks, progress=100.0, active=150.0), LIMITS)
    assert moved is not None
    assert moved.until_s == 50.0 + LIMITS.act_after_s


def test_a_rank_that_computes_gets_five_times_the_patience() -> None:
    limits = StallLimits(act_after_s=8.0)
    busy = row(0, at=TRAIN, cpu_share=1.0)
    assert stall.extension(busy, limits).until_s == 40.0  # type: ignore[union-attr]
    longer = replace(limits, busy_s=90.0)
    assert stall.extension(busy, longer).until_s == 90.0  # type: ignore[union-attr]
    alone = stall.extension(busy, limits, is_awaited=False)
    assert alone is not None
    assert alone.until_s == float("inf")  # no other rank loses time


def test_a_rank_that_prepares_data_before_its_first_step_gets_half_an_hour() -> None:
    early = row(0, at=TRAIN, cpu_share=1.0, step=None, step_p99_s=None)
    assert stall.extension(early, LIMITS).until_s == LIMITS.alone_s  # type: ignore[union-attr]
    trained = row(0, *history(30), at=TRAIN, step=None, step_p99_s=None)
    assert not stall.is_before_first_step(trained)


def test_busy_children_are_activity() -> None:
    state = row(0, at=TRAIN, children_cpu_share=0.9)
    assert "child processes compute" in stall.extension(state, LIMITS).why  # type: ignore[union-attr]


def test_a_stack_that_changes_is_not_stuck() -> None:
    stacks = (ThreadStack((TRAIN,)), ThreadStack((LOADER,)))
    assert "changes" in stall.extension(row(0, stacks=stacks), LIMITS).why  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("frame", "limit"),
    [
        (SourceLine("/env/torch/serialization.py", 900, "_save"), LIMITS.checkpoint_s),
        (
            SourceLine("/env/torch/distributed/checkpoint/state_dict_saver.py", 1, "save"),
            LIMITS.checkpoint_s,
        ),
        (SourceLine("/job/train.py", 1, "save_checkpoint"), LIMITS.checkpoint_s),
        (SourceLine("/env/torch/_inductor/compile_fx.py", 1, "compile"), LIMITS.compile_s),
        (SourceLine("/job/train.py", 1, "evaluate"), LIMITS.evaluation_s),
        (SourceLine("/job/train.py", 1, "run_validation_epoch"), LIMITS.evaluation_s),
    ],
)
def test_the_stack_shows_the_phase(frame: SourceLine, limit: float) -> None:
    stacks = (ThreadStack((frame, TRAIN)), ThreadStack((frame, TRAIN)))
    found = stall.extension(row(0, stacks=stacks), LIMITS)
    assert found is not None
    assert found.until_s == limit


@pytest.mark.parametrize(
    "function", ["train_step", "evaluated_once_retrieval", "medieval", "load", "step"]
)
def test_other_function_names_show_no_phase(function: str) -> None:
    stacks = (ThreadStack((SourceLine("/job/train.py", 1, function),)),) * 2
    assert stall.extension(row(0, stacks=stacks), LIMITS) is None


def test_a_declared_phase_has_its_own_limit() -> None:
    found = stall.extension(row(0, at=TRAIN, phase="export", phase_budget_s=90.0), LIMITS)
    assert found is not None
    assert found.until_s == 90.0


def test_the_first_step_gets_more_time() -> None:
    found = stall.extension(row(0, at=TRAIN, step=None, step_p99_s=None), LIMITS)
    assert found is not None
    assert found.until_s == LIMITS.first_step_s


@pytest.mark.parametrize("life", [ProcessState.STOPPED, ProcessState.DEAD])
def test_a_process_that_does_not_run_gets_no_extension(life: ProcessState) -> None:
    assert stall.extension(row(0, at=TRAIN, life=life, cpu_share=0.9), LIMITS) is None


def test_a_rank_that_waits_for_a_disk_gets_the_limit_of_its_phase() -> None:
    def disk(**known: object) -> stall.StallPatience | None:
        return stall.extension(row(0, at=TRAIN, life=ProcessState.DISK, **known), LIMITS)

    assert disk() is None
    saving, loading, moving = (
        disk(phase="save", phase_budget_s=90.0),
        disk(step=None, step_p99_s=None),
        disk(io_bytes=1 << 26),
    )
    assert (saving and saving.until_s) == 90.0
    assert (loading and loading.until_s) == LIMITS.first_step_s
    assert moving is not None


def test_a_call_of_all_ranks_gets_the_limit_of_a_phase() -> None:
    new = [row(0, step=None, step_p99_s=None), row(1, step=None, step_p99_s=None)]
    first = stall.extension_for_all(new, LIMITS)
    assert first is not None
    assert first.until_s == LIMITS.first_step_s
    saving = stall.extension_for_all([row(0), row(1, phase="save", phase_budget_s=90.0)], LIMITS)
    assert saving is not None
    assert saving.until_s == 90.0
    assert stall.extension_for_all([row(0), row(1)], LIMITS) is None
