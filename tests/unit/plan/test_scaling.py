"""Scaling curves: reasons for efficiency drops, and valid remedies."""

import msgspec
import pytest
from hypothesis import given, settings

from holdfast.core.errors import InvalidValue
from holdfast.plan.advice.remedies import find_speed_remedies
from holdfast.plan.advice.scaling import (
    ScalingMode,
    costs_per_token,
    gpu_counts,
    resize_setup,
    sweep_gpu_counts,
)
from holdfast.plan.advice.shortfall import MeasuredThroughput, explain_shortfall
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import ActivationCheckpointing, Precision, ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.rates import Conditions
from tests.hypothesis_profiles import examples

from .setup_strategies import jobs

A100 = Cluster.parse("4 x 8 A100-80G")
SLOW = msgspec.structs.replace(
    A100, links=msgspec.structs.replace(A100.links, inter_node=12.5e9 / 8)
)
MODEL = get_known_model("llama2-7b")
SETUP = TrainingSetup(data=32, micro_batch=2, sequence=2048)


def test_gpu_counts_start_at_one_model_replica():
    assert gpu_counts(TrainingSetup(), 8) == (1, 2, 4, 8)
    assert gpu_counts(TrainingSetup(tensor=8, pipeline=3), 100) == (24, 48, 96, 100)
    assert gpu_counts(TrainingSetup(tensor=8), 8) == (8,)


@pytest.mark.parametrize("growth", ScalingMode)
def test_batch_is_per_gpu_or_global(growth):
    small, large = (resize_setup(SETUP, gpus, growth) for gpus in (8, 64))
    assert (small.data, large.data) == (8, 64)
    assert large.global_batch == (64 if growth is ScalingMode.STRONG else 8 * small.global_batch)
    assert small.global_batch == (64 if growth is ScalingMode.STRONG else 16)


def test_shard_groups_keep_their_size():
    setup = TrainingSetup(data=32, replicas=4)
    assert resize_setup(setup, 64).replicas == 8
    assert resize_setup(setup, 8).replicas == 1
    with pytest.raises(InvalidValue, match="multiple of 8"):
        resize_setup(TrainingSetup(tensor=8), 12)


@settings(max_examples=examples(25))
@given(jobs())
def test_efficiency_is_at_most_1(job):
    model, setup, cluster = job
    least = setup.tensor * setup.pipeline * setup.context
    result = sweep_gpu_counts(model, setup, cluster, [least * times for times in (1, 2, 4)])
    assert all(0 < point.efficiency <= 1 for point in result.points)
    assert max(point.efficiency for point in result.points) == 1
    for point in result.points:
        assert sum(costs_per_token(point.step).values()) == pytest.approx(
            1 / point.step.tokens_per_s_per_gpu
        )


def test_slow_network_reduces_efficiency_at_second_node():
    result = sweep_gpu_counts(MODEL, SETUP, SLOW, gpu_counts(SETUP, 32))
    bends = [point for point in result.points if point.reason]
    assert [point.gpus for point in bends] == [16]
    assert "now span 2 nodes at 11.5 GB/s" in bends[0].reason
    assert result.points[-1].efficiency < 0.3


def test_curve_ends_where_the_global_batch_cannot_be_split():
    result = sweep_gpu_counts(
        MODEL, TrainingSetup(data=4, micro_batch=2), A100, [4, 8, 16], ScalingMode.STRONG
    )
    assert [point.gpus for point in result.points] == [4, 8]
    assert "8 sequences cannot be split equally among 16 ranks" in result.ends


def test_fewer_micro_batches_increase_the_bubble():
    setup = TrainingSetup(
        strategy=ShardingStrategy.DDP,
        data=2,
        tensor=8,
        pipeline=12,
        accumulation=64,
        recompute=ActivationCheckpointing.FULL,
    )
    result = sweep_gpu_counts(
        get_known_model("gpt3-175b"), setup, A100, [96, 192, 384], ScalingMode.STRONG
    )
    assert result.points[-1].reason.startswith("pipeline bubble")
    assert "12 stages with 32 micro-batches, previously 64" in result.points[-1].reason
    assert any("schedule" in each.name for each in result.remedies)


def test_small_calls_are_latency_bound():
    result = sweep_gpu_counts(
        get_known_model("gpt2"), TrainingSetup(micro_batch=1, sequence=1024), A100, [8, 1024]
    )
    assert "latency" in result.points[-1].reason


@settings(max_examples=examples(25))
@given(jobs())
def test_remedy_gain_matches_its_step(job):
    model, setup, cluster = job
    before = estimate_step_time(model, setup, cluster)
    for each in find_speed_remedies(model, setup, cluster):
        after = estimate_step_time(model, each.setup, cluster, each.conditions)
        assert each.gain > 1
        assert after.tokens_per_s / before.tokens_per_s == pytest.approx(each.gain)
        assert each.setup.world_size == setup.world_size


def test_sharding_within_nodes_helps_on_a_slow_network():
    setup = msgspec.structs.replace(SETUP, precision=Precision(reduced=2))
    result = {each.name: each.gain for each in find_speed_remedies(MODEL, setup, SLOW)}
    assert result["shard within nodes, replicate across nodes (HSDP)"] > 1.2


def test_efficiency_drop_from_90_to_60_percent_is_explained():
    result = explain_shortfall(
        MODEL, SETUP, A100, (MeasuredThroughput(8, 0.9), MeasuredThroughput(32, 0.6))
    )
    assert result.exposed == pytest.approx((1 / 9, 2 / 3))
    assert result.expected > 0.8
    assert 0.1 < result.outside_share < 0.5
    assert "span 4 nodes" in result.reason
    assert result.remedies
    small = estimate_step_time(MODEL, resize_setup(SETUP, 8), A100.resized(8), result.conditions)
    assert result.step.tokens_per_s_per_gpu / small.tokens_per_s_per_gpu == pytest.approx(
        0.6 / 0.9, rel=1e-3
    )


def test_unexplained_loss_is_reported():
    better = explain_shortfall(
        MODEL, SETUP, A100, (MeasuredThroughput(8, 0.5), MeasuredThroughput(32, 0.9))
    )
    assert better.outside_share is None
    within = explain_shortfall(
        MODEL,
        TrainingSetup(data=8, micro_batch=8),
        A100,
        (MeasuredThroughput(2, 0.9), MeasuredThroughput(8, 0.3)),
    )
    assert within.outside_share is None


@pytest.mark.parametrize(
    "measured", [((8, 0.9), (8, 0.5)), ((8, 0.0), (16, 0.5)), ((8, 0.9), (16, 1.2))]
)
def test_invalid_measurements_are_rejected(measured):
    with pytest.raises(InvalidValue):
        explain_shortfall(MODEL, SETUP, A100, tuple(MeasuredThroughput(*each) for each in measured))


def test_outside_share_scales_the_network():
    half = estimate_step_time(MODEL, SETUP, A100, Conditions(outside_share=0.5)).seconds
    links = msgspec.structs.replace(A100.links, inter_node=A100.links.inter_node / 2)
    assert (
        half == estimate_step_time(MODEL, SETUP, msgspec.structs.replace(A100, links=links)).seconds
    )
