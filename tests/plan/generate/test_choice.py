import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.generate.choice import Framework, Wishes, choose
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import known
from holdfast.plan.setup import Offload, Setup, Strategy
from tests.plan.cases import jobs

USED = ("", "transformers", "accelerate", "lightning", "torchtitan", "megatron-deepspeed")


@settings(max_examples=150, deadline=None)
@given(jobs(), st.booleans(), st.sampled_from(USED), st.booleans())
def test_something_always_speaks_for_each_and_every_fact_has_a_source(job, nvme, used, resized):
    found = choose(*job, Wishes(nvme=nvme, used=used, resized=resized))
    for framework in Framework:
        assert found.speaking_for(framework)
    for reason in found.reasons:
        assert reason.source
        assert 1 <= reason.weight <= 3
    weights = {each: sum(reason.weight for reason in found.speaking_for(each)) for each in Framework}
    assert weights[found.recommended] == max(weights.values())
    assert found.close is (abs(weights[Framework.FSDP2] - weights[Framework.DEEPSPEED]) <= 1)


@pytest.mark.parametrize(
    ("model", "setup", "cluster", "wishes", "recommended"),
    [
        ("llama3.1-70b", Setup(data=8), "8 A100-80G", Wishes(nvme=True), Framework.DEEPSPEED),
        ("llama2-13b", Setup(data=8, strategy=Strategy.ZERO2, offload=Offload.OPTIMIZER), "8 V100-32G", None,
         Framework.DEEPSPEED),
        ("llama3.1-8b", Setup(data=64, compiled=True), "8 x 8 H100-80G", Wishes(resized=True), Framework.FSDP2),
        ("llama3.1-405b", Setup(data=64, tensor=8, pipeline=4), "256 x 8 H100-80G", None, Framework.FSDP2),
        ("llama3.1-8b", Setup(data=8), "8 H100-80G", Wishes(used="megatron-deepspeed"), Framework.DEEPSPEED),
        ("llama3.1-8b", Setup(data=8), "8 H100-80G", Wishes(used="torchtitan"), Framework.FSDP2),
    ],
)  # fmt: skip
def test_what_weighs_most_decides(model, setup, cluster, wishes, recommended):
    assert choose(known(model), setup, Cluster.parse(cluster), wishes).recommended is recommended


def test_without_anything_special_it_is_a_matter_of_taste():
    assert choose(known("llama3.1-8b"), Setup(data=8), Cluster.parse("8 H100-80G")).close


def sentences(model, cluster):
    found = choose(known(model), Setup(data=Cluster.parse(cluster).gpus), Cluster.parse(cluster))
    return {reason.for_: reason.sentence for reason in found.reasons if "network" in reason.sentence}


def test_slow_links_speak_for_what_stays_inside_nodes():
    assert "HSDP" in sentences("llama3.1-8b", "4 x 8 A100-80G @ 100 Gbit/s")[Framework.FSDP2]
    assert "hpZ" in sentences("llama3.1-70b", "4 x 8 A100-80G @ 100 Gbit/s")[Framework.DEEPSPEED]
    assert sentences("llama3.1-70b", "8 A100-80G") == {}
