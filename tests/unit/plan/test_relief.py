"""Memory savings and slowdown of each suggested change."""

from __future__ import annotations

import pytest

from holdfast.plan.advice.relief import find_memory_relief
from holdfast.plan.hardware import Cluster
from holdfast.plan.memory.estimate import estimate_memory
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import ActivationCheckpointing, ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.estimate import estimate_step_time

GIB = 1 << 30
MODEL, CLUSTER = get_known_model("llama3.1-8b"), Cluster.parse("8 H100")


def find_relief(setup, missing=None, gib=80):
    return find_memory_relief(
        lambda run: estimate_memory(MODEL, run, gib * GIB),
        lambda run: estimate_step_time(MODEL, run, CLUSTER.resized(run.world_size)),
        setup,
        missing,
    )


def test_sufficient_and_fast_options_come_first():
    result = find_relief(TrainingSetup(data=8, micro_batch=2, sequence=8192))
    sufficient = [option.sufficient for option in result.options]
    assert sufficient == sorted(sufficient, reverse=True)
    assert any(sufficient)
    slowdowns = [option.slowdown for option in result.options if option.sufficient]
    assert slowdowns == sorted(slowdowns)
    names = [option.change.what for option in result.options]
    assert names.index("chunk the loss computation") < names.index(
        "checkpoint activations of cheap operations"
    )


def test_savings_and_slowdowns_match_the_models():
    setup = TrainingSetup(data=8, micro_batch=2, sequence=8192)
    option = next(
        each
        for each in find_relief(setup).options
        if each.change.what == "checkpoint activations of whole layers"
    )
    recomputing = TrainingSetup(
        data=8, micro_batch=2, sequence=8192, recompute=ActivationCheckpointing.FULL
    )
    assert (
        option.saved
        == estimate_memory(MODEL, setup).worst.total
        - estimate_memory(MODEL, recomputing).worst.total
    )
    speeds = [
        estimate_step_time(MODEL, each, CLUSTER).tokens_per_s_per_gpu
        for each in (setup, recomputing)
    ]
    assert option.slowdown == pytest.approx(1 - speeds[1] / speeds[0])
    assert 0.1 < option.slowdown < 0.35


def test_changes_must_save_the_missing_bytes():
    setup = TrainingSetup(data=8, micro_batch=1, sequence=8192)
    default = {option.change.what: option.sufficient for option in find_relief(setup).options}
    sufficient_by_change = {
        option.change.what: option.sufficient
        for option in find_relief(setup, missing=20 * GIB).options
    }
    assert default["chunk the loss computation"]
    assert not sufficient_by_change["chunk the loss computation"]  # saves only 11 GiB
    assert sufficient_by_change["checkpoint activations of cheap operations"]


def test_insufficient_changes_are_combined():
    result = find_relief(
        TrainingSetup(strategy=ShardingStrategy.DDP, data=8, sequence=8192, micro_batch=2), gib=16
    )
    assert not any(option.sufficient for option in result.options)
    assert len(result.combined) > 1
    assert find_relief(TrainingSetup(data=8, micro_batch=2, sequence=8192)).combined == ()


def test_unknown_slowdown_sorts_last():
    setup = TrainingSetup(data=8, micro_batch=2, sequence=8192)
    result = find_memory_relief(
        lambda run: estimate_memory(MODEL, run, 80 * GIB),
        lambda run: estimate_step_time(MODEL, run, Cluster.parse("8 H100")),
        setup,
    )
    unknown = [option for option in result.options if option.slowdown is None]
    assert {option.change.setup.world_size for option in unknown} == {16, 32}
    assert result.options[-1].slowdown is None
