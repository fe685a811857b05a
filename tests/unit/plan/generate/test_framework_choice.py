import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.generate.framework_choice import Framework, FrameworkNeeds, choose_framework
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import OffloadTarget, ShardingStrategy, TrainingSetup
from tests.hypothesis_profiles import examples
from tests.unit.plan.setup_strategies import jobs

USED = ("", "transformers", "accelerate", "lightning", "torchtitan", "megatron-deepspeed")


@settings(max_examples=examples(150))
@given(jobs(), st.booleans(), st.sampled_from(USED), st.booleans())
def test_each_framework_has_sourced_reasons(job, nvme, used, resized):
    result = choose_framework(
        *job, FrameworkNeeds(allows_nvme=nvme, used_library=used, changes_gpu_count=resized)
    )
    for reason in result.reasons:
        assert reason.source
        assert 1 <= reason.weight <= 3
    weights = {
        each: sum(reason.weight for reason in result.reasons if reason.framework is each)
        for each in Framework
    }
    assert all(weights.values())
    assert weights[result.recommended] == max(weights.values())
    assert result.is_close is (abs(weights[Framework.FSDP2] - weights[Framework.DEEPSPEED]) <= 1)


@pytest.mark.parametrize(
    ("model", "setup", "cluster", "wishes", "recommended"),
    [
        (
            "llama3.1-70b",
            TrainingSetup(data=8),
            "8 A100-80G",
            FrameworkNeeds(allows_nvme=True),
            Framework.DEEPSPEED,
        ),
        (
            "llama2-13b",
            TrainingSetup(data=8, strategy=ShardingStrategy.ZERO2, offload=OffloadTarget.OPTIMIZER),
            "8 V100-32G",
            None,
            Framework.DEEPSPEED,
        ),
        (
            "llama3.1-8b",
            TrainingSetup(data=64, compiled=True),
            "8 x 8 H100-80G",
            FrameworkNeeds(changes_gpu_count=True),
            Framework.FSDP2,
        ),
        (
            "llama3.1-405b",
            TrainingSetup(data=64, tensor=8, pipeline=4),
            "256 x 8 H100-80G",
            None,
            Framework.FSDP2,
        ),
        (
            "llama3.1-8b",
            TrainingSetup(data=8),
            "8 H100-80G",
            FrameworkNeeds(used_library="megatron-deepspeed"),
            Framework.DEEPSPEED,
        ),
        (
            "llama3.1-8b",
            TrainingSetup(data=8),
            "8 H100-80G",
            FrameworkNeeds(used_library="torchtitan"),
            Framework.FSDP2,
        ),
    ],
)
def test_heaviest_reasons_decide(model, setup, cluster, wishes, recommended):
    assert (
        choose_framework(get_known_model(model), setup, Cluster.parse(cluster), wishes).recommended
        is recommended
    )


def test_default_choice_is_close():
    assert choose_framework(
        get_known_model("llama3.1-8b"), TrainingSetup(data=8), Cluster.parse("8 H100-80G")
    ).is_close


def sentences(model, cluster):
    result = choose_framework(
        get_known_model(model),
        TrainingSetup(data=Cluster.parse(cluster).gpus),
        Cluster.parse(cluster),
    )
    return {
        reason.framework: reason.sentence
        for reason in result.reasons
        if "network" in reason.sentence
    }


def test_slow_links_favour_intra_node_sharding():
    assert "HSDP" in sentences("llama3.1-8b", "4 x 8 A100-80G @ 100 Gbit/s")[Framework.FSDP2]
    assert "hpZ" in sentences("llama3.1-70b", "4 x 8 A100-80G @ 100 Gbit/s")[Framework.DEEPSPEED]
    assert sentences("llama3.1-70b", "8 A100-80G") == {}
