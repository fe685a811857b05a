"""A step's time is the sum of its parts, no part is below 0, and better hardware is never slower."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import known
from holdfast.plan.rates import Conditions, Kernel
from holdfast.plan.setup import Recompute, Schedule, Setup, Strategy
from holdfast.plan.time import step
from holdfast.plan.traffic import Part

from .cases import jobs

EIGHT = Cluster.parse("8 A100-80G")


@given(jobs())
def test_parts_sum_to_the_step_and_none_is_below_nothing(job):
    found = step(*job)
    parts = (found.compute, found.communication, found.bubble, found.optimizer, found.waiting)
    assert min(parts) >= 0
    assert min([*found.exposed.values(), *found.hidden.values(), 0]) >= 0
    assert found.seconds == pytest.approx(sum(parts))
    assert found.tokens_per_s * found.seconds == pytest.approx(job[1].tokens_a_step)
    assert 0 < found.mfu <= found.hfu <= 1


@given(jobs(), st.floats(1, 10))
def test_better_hardware_is_never_slower(job, better):
    model, setup, cluster = job
    before = step(model, setup, cluster).seconds
    faster = {key: getattr(cluster.gpu, key) * better for key in ("fp16", "bf16", "fp32", "tf32")}
    gpus = [
        msgspec.structs.replace(cluster.gpu, bandwidth=cluster.gpu.bandwidth * better),
        msgspec.structs.replace(cluster.gpu, **faster),
    ]
    links = [
        msgspec.structs.replace(cluster.links, **{key: getattr(cluster.links, key) * better})
        for key in ("inside", "outside")
    ]
    changed = [msgspec.structs.replace(cluster, gpu=each) for each in gpus]
    changed += [msgspec.structs.replace(cluster, links=each) for each in links]
    for each in changed:
        assert step(model, setup, each).seconds <= before * (1 + 1e-9)


def test_a_wrong_number_of_gpus_is_refused():
    with pytest.raises(BadValue, match="it needs 4 GPUs, not 8"):
        step(known("llama2-7b"), Setup(data=4), EIGHT)


def test_eight_bits_need_units_for_them():
    with pytest.raises(BadValue, match="fp8 on A100-80G"):
        step(known("llama2-7b"), Setup(data=8), EIGHT, Conditions(float8=True))


def test_what_is_computed_again_takes_time_but_is_no_use():
    model = known("llama2-7b")
    none, full = (step(model, Setup(data=8, micro_batch=2, recompute=each), EIGHT)
                  for each in (Recompute.NONE, Recompute.FULL))  # fmt: skip
    assert 1.15 < full.compute / none.compute < 1.34
    assert none.mfu == none.hfu
    assert full.hfu > full.mfu


def test_gathering_hides_behind_products_only_where_there_are_enough():
    model, cluster = known("llama2-7b"), Cluster.parse("8 x 8 A100-80G")
    few = step(model, Setup(data=64, micro_batch=1, sequence=512), cluster)
    many = step(model, Setup(data=64, micro_batch=8, sequence=2048), cluster)
    assert few.communication / few.seconds > 0.3
    assert many.communication / many.seconds < 0.1
    alone = step(model, Setup(data=64, micro_batch=8, sequence=2048), cluster, Conditions(prefetch=False))
    assert alone.exposed[Part.GATHER] > 1.5 * many.exposed[Part.GATHER]


def test_a_pipelines_bubble_is_that_of_its_schedule():
    model, cluster = known("gpt3-175b"), Cluster.parse("8 x 8 A100-80G")
    setup = Setup(strategy=Strategy.DDP, tensor=8, pipeline=8, accumulation=16, chunks=3, recompute=Recompute.FULL)
    found = {each: step(model, msgspec.structs.replace(setup, schedule=each), cluster) for each in Schedule}
    one = found[Schedule.ONE_F_ONE_B]
    assert one.bubble / (one.compute + one.communication) == pytest.approx(7 / 16, rel=0.1)
    assert found[Schedule.INTERLEAVED].bubble == pytest.approx(one.bubble / 3)
    assert found[Schedule.ZERO_BUBBLE].bubble == pytest.approx(one.bubble / 3)


@pytest.mark.parametrize(
    "wrong", [{"outside_share": 0}, {"slowest": 0.5}, {"jitter": -1}, {"loading_s": float("nan")}, {"bucket": 0}]
)
def test_conditions_that_cannot_be_are_refused(wrong):
    with pytest.raises(BadValue, match="cannot be"):
        Conditions(**wrong)


def test_everybody_waits_for_the_slowest_rank():
    model, setup = known("llama2-7b"), Setup(data=8, micro_batch=4)
    before = step(model, setup, EIGHT).seconds
    assert step(model, setup, EIGHT, Conditions(slowest=1.5)).seconds / before == pytest.approx(1.5, rel=0.05)
    assert step(model, setup, EIGHT, Conditions(loading_s=1.0)).seconds == pytest.approx(before + 1.0)


def test_a_newer_kernel_is_faster_on_long_sequences():
    cluster, setup = Cluster.parse("8 H100"), Setup(data=8, sequence=65536)
    seconds = [step(known("llama3.1-8b"), setup, cluster, Conditions(kernel=each)).seconds for each in Kernel]
    assert seconds == sorted(seconds, reverse=True)


def test_it_lies_near_what_others_measured():
    """torchtitan, docs/performance.md: Llama 3 8B, 64 A100-80G, every second layer recomputed; 2,904 tokens/s a GPU."""
    setup = Setup(data=64, sequence=8192, recompute=Recompute.SECOND_LAYER)
    found = step(known("llama3-8b"), setup, Cluster.parse("8 x 8 A100-80G"))
    assert found.tokens_per_s_per_gpu == pytest.approx(2904, rel=0.15)
