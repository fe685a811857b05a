"""Curves fall where and why they have to, remedies are real changes, and two measured points are enough to say why."""

import msgspec
import pytest
from hypothesis import given, settings

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import known
from holdfast.plan.rates import Conditions
from holdfast.plan.remedies import remedies
from holdfast.plan.scaling import Growth, costs, curve, resized, sizes
from holdfast.plan.setup import Precision, Recompute, Setup, Strategy
from holdfast.plan.shortfall import Measured, shortfall
from holdfast.plan.time import step

from .cases import jobs

A100 = Cluster.parse("4 x 8 A100-80G")
SLOW = msgspec.structs.replace(A100, links=msgspec.structs.replace(A100.links, outside=12.5e9 / 8))
MODEL = known("llama2-7b")
SETUP = Setup(data=32, micro_batch=2, sequence=2048)


def test_sizes_begin_with_the_ranks_of_one_model():
    assert sizes(Setup(), 8) == (1, 2, 4, 8)
    assert sizes(Setup(tensor=8, pipeline=3), 100) == (24, 48, 96, 100)
    assert sizes(Setup(tensor=8), 8) == (8,)


@pytest.mark.parametrize("growth", Growth)
def test_a_batch_grows_with_the_gpus_or_stays(growth):
    small, large = (resized(SETUP, gpus, growth) for gpus in (8, 64))
    assert (small.data, large.data) == (8, 64)
    assert large.global_batch == (64 if growth is Growth.STRONG else 8 * small.global_batch)
    assert small.global_batch == (64 if growth is Growth.STRONG else 16)


def test_groups_of_shards_stay_as_large_where_there_are_replicas():
    setup = Setup(data=32, replicas=4)
    assert resized(setup, 64).replicas == 8
    assert resized(setup, 8).replicas == 1
    with pytest.raises(BadValue, match="multiple of 8"):
        resized(Setup(tensor=8), 12)


@settings(max_examples=25)
@given(jobs())
def test_efficiency_is_a_share(job):
    model, setup, cluster = job
    least = setup.tensor * setup.pipeline * setup.context
    found = curve(model, setup, cluster, [least * times for times in (1, 2, 4)])
    assert all(0 < point.efficiency <= 1 for point in found.points)
    assert max(point.efficiency for point in found.points) == 1
    for point in found.points:
        assert sum(costs(point.step).values()) == pytest.approx(1 / point.step.tokens_per_s_per_gpu)


def test_a_slow_network_bends_the_curve_at_the_second_node():
    found = curve(MODEL, SETUP, SLOW, sizes(SETUP, 32))
    bends = [point for point in found.points if point.reason]
    assert [point.gpus for point in bends] == [16]
    assert "now stand in 2 nodes, which talk at 11.5 GB/s" in bends[0].reason
    assert found.points[-1].efficiency < 0.3


def test_a_global_batch_that_stays_ends_the_curve():
    found = curve(MODEL, Setup(data=4, micro_batch=2), A100, [4, 8, 16], Growth.STRONG)
    assert [point.gpus for point in found.points] == [4, 8]
    assert "8 sequences give 16 ranks no equal shares" in found.ends


def test_a_pipeline_with_fewer_micro_batches_waits_longer():
    setup = Setup(strategy=Strategy.DDP, data=2, tensor=8, pipeline=12, accumulation=64, recompute=Recompute.FULL)
    found = curve(known("gpt3-175b"), setup, A100, [96, 192, 384], Growth.STRONG)
    assert found.points[-1].reason.startswith("the pipeline's bubble")
    assert "12 stages have 32 micro-batches to fill them, where they had 64" in found.points[-1].reason
    assert any("schedule" in each.name for each in found.remedies)


def test_small_calls_are_mostly_latency():
    found = curve(known("gpt2"), Setup(micro_batch=1, sequence=1024), A100, [8, 1024])
    assert "latency" in found.points[-1].reason


@settings(max_examples=25)
@given(jobs())
def test_a_remedy_gives_what_it_says(job):
    model, setup, cluster = job
    before = step(model, setup, cluster)
    for each in remedies(model, setup, cluster):
        again = step(model, each.setup, cluster, each.conditions)
        assert each.gain > 1
        assert again.tokens_per_s / before.tokens_per_s == pytest.approx(each.gain)
        assert each.setup.world_size == setup.world_size


def test_shards_within_a_node_help_where_the_network_is_slow():
    setup = msgspec.structs.replace(SETUP, precision=Precision(reduced=2))
    found = {each.name: each.gain for each in remedies(MODEL, setup, SLOW)}
    assert found["shards within a node, replicas across (HSDP)"] > 1.2


def test_from_ninety_percent_on_8_gpus_to_sixty_on_32():
    found = shortfall(MODEL, SETUP, A100, (Measured(8, 0.9), Measured(32, 0.6)))
    assert found.exposed == pytest.approx((1 / 9, 2 / 3))
    assert found.expected > 0.8
    assert 0.1 < found.outside_share < 0.5
    assert "stand in 4 nodes" in found.reason
    assert found.remedies
    small = step(MODEL, resized(SETUP, 8), A100.resized(8), found.conditions)
    assert found.step.tokens_per_s_per_gpu / small.tokens_per_s_per_gpu == pytest.approx(0.6 / 0.9, rel=1e-3)


def test_what_no_network_explains_is_said_to_be_so():
    better = shortfall(MODEL, SETUP, A100, (Measured(8, 0.5), Measured(32, 0.9)))
    assert better.outside_share is None
    within = shortfall(MODEL, Setup(data=8, micro_batch=8), A100, (Measured(2, 0.9), Measured(8, 0.3)))
    assert within.outside_share is None


@pytest.mark.parametrize("measured", [((8, 0.9), (8, 0.5)), ((8, 0.0), (16, 0.5)), ((8, 0.9), (16, 1.2))])
def test_measurements_that_cannot_be_are_refused(measured):
    with pytest.raises(BadValue):
        shortfall(MODEL, SETUP, A100, tuple(Measured(*each) for each in measured))


def test_a_share_of_the_network_is_a_condition():
    half = step(MODEL, SETUP, A100, Conditions(outside_share=0.5)).seconds
    links = msgspec.structs.replace(A100.links, outside=A100.links.outside / 2)
    assert half == step(MODEL, SETUP, msgspec.structs.replace(A100, links=links)).seconds
