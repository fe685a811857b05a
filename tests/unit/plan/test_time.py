"""Step time is the sum of nonnegative parts, and better hardware is never slower."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.rates import AttentionKernel, Conditions
from holdfast.plan.step_time.traffic import TrafficKind

from .setup_strategies import jobs

EIGHT = Cluster.parse("8 A100-80G")


@given(jobs())
def test_step_parts_are_nonnegative_and_sum_to_total(job):
    result = estimate_step_time(*job)
    parts = (result.compute, result.communication, result.bubble, result.optimizer, result.waiting)
    assert min(parts) >= 0
    assert min([*result.exposed.values(), *result.hidden.values(), 0]) >= 0
    assert result.seconds == pytest.approx(sum(parts))
    assert result.tokens_per_s * result.seconds == pytest.approx(job[1].tokens_per_step)
    assert 0 < result.mfu <= result.hfu <= 1


@given(jobs(), st.floats(1, 10))
def test_better_hardware_is_never_slower(job, better):
    model, setup, cluster = job
    before = estimate_step_time(model, setup, cluster).seconds
    faster = {key: getattr(cluster.gpu, key) * better for key in ("fp16", "bf16", "fp32", "tf32")}
    gpus = [
        msgspec.structs.replace(cluster.gpu, bandwidth=cluster.gpu.bandwidth * better),
        msgspec.structs.replace(cluster.gpu, **faster),
    ]
    links = [
        msgspec.structs.replace(cluster.links, **{key: getattr(cluster.links, key) * better})
        for key in ("intra_node", "inter_node")
    ]
    changed = [msgspec.structs.replace(cluster, gpu=each) for each in gpus]
    changed += [msgspec.structs.replace(cluster, links=each) for each in links]
    for each in changed:
        assert estimate_step_time(model, setup, each).seconds <= before * (1 + 1e-9)


def test_wrong_gpu_count_is_rejected():
    with pytest.raises(InvalidValue, match="it needs 4 GPUs, not 8"):
        estimate_step_time(get_known_model("llama2-7b"), TrainingSetup(data=4), EIGHT)


def test_fp8_needs_hardware_support():
    with pytest.raises(InvalidValue, match="fp8 on A100-80G"):
        estimate_step_time(
            get_known_model("llama2-7b"), TrainingSetup(data=8), EIGHT, Conditions(float8=True)
        )


def test_recomputation_costs_time_without_mfu():
    model = get_known_model("llama2-7b")
    none, full = (
        estimate_step_time(model, TrainingSetup(data=8, micro_batch=2, recompute=each), EIGHT)
        for each in (ActivationCheckpointing.NONE, ActivationCheckpointing.FULL)
    )
    assert 1.15 < full.compute / none.compute < 1.34
    assert none.mfu == none.hfu
    assert full.hfu > full.mfu


def test_gathering_overlaps_only_enough_compute():
    model, cluster = get_known_model("llama2-7b"), Cluster.parse("8 x 8 A100-80G")
    few = estimate_step_time(model, TrainingSetup(data=64, micro_batch=1, sequence=512), cluster)
    many = estimate_step_time(model, TrainingSetup(data=64, micro_batch=8, sequence=2048), cluster)
    assert few.communication / few.seconds > 0.3
    assert many.communication / many.seconds < 0.1
    no_prefetch = estimate_step_time(
        model,
        TrainingSetup(data=64, micro_batch=8, sequence=2048),
        cluster,
        Conditions(prefetch=False),
    )
    assert no_prefetch.exposed[TrafficKind.GATHER] > 1.5 * many.exposed[TrafficKind.GATHER]


def test_bubble_depends_on_schedule():
    model, cluster = get_known_model("gpt3-175b"), Cluster.parse("8 x 8 A100-80G")
    setup = TrainingSetup(
        strategy=ShardingStrategy.DDP,
        tensor=8,
        pipeline=8,
        accumulation=16,
        chunks=3,
        recompute=ActivationCheckpointing.FULL,
    )
    result = {
        each: estimate_step_time(model, msgspec.structs.replace(setup, schedule=each), cluster)
        for each in PipelineSchedule
    }
    one = result[PipelineSchedule.ONE_F_ONE_B]
    assert one.bubble / (one.compute + one.communication) == pytest.approx(7 / 16, rel=0.1)
    assert result[PipelineSchedule.INTERLEAVED].bubble == pytest.approx(one.bubble / 3)
    assert result[PipelineSchedule.ZERO_BUBBLE].bubble == pytest.approx(one.bubble / 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"outside_share": 0},
        {"slowest": 0.5},
        {"jitter": -1},
        {"loading_s": float("nan")},
        {"bucket": 0},
    ],
)
def test_invalid_conditions_are_rejected(wrong):
    with pytest.raises(InvalidValue, match="is out of range"):
        Conditions(**wrong)


def test_slowest_rank_delays_the_step():
    model, setup = get_known_model("llama2-7b"), TrainingSetup(data=8, micro_batch=4)
    before = estimate_step_time(model, setup, EIGHT).seconds
    assert estimate_step_time(
        model, setup, EIGHT, Conditions(slowest=1.5)
    ).seconds / before == pytest.approx(1.5, rel=0.05)
    assert estimate_step_time(
        model, setup, EIGHT, Conditions(loading_s=1.0)
    ).seconds == pytest.approx(before + 1.0)


def test_newer_attention_kernels_are_faster_on_long_sequences():
    cluster, setup = Cluster.parse("8 H100"), TrainingSetup(data=8, sequence=65536)
    seconds = [
        estimate_step_time(
            get_known_model("llama3.1-8b"), setup, cluster, Conditions(kernel=each)
        ).seconds
        for each in AttentionKernel
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_overhead_is_near_published_measurements():
    """torchtitan, docs/performance.md: Llama 3 8B, 64 A100-80G, every second layer recomputed; 2,904 tokens/s per GPU."""
    setup = TrainingSetup(data=64, sequence=8192, recompute=ActivationCheckpointing.SECOND_LAYER)
    result = estimate_step_time(
        get_known_model("llama3-8b"), setup, Cluster.parse("8 x 8 A100-80G")
    )
    assert result.tokens_per_s_per_gpu == pytest.approx(2904, rel=0.15)
