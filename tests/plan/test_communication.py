"""Collectives' times against published ones, and volumes against those of the papers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.measured.fit import Fit
from holdfast.plan.communication import (
    NIC_SHARE,
    RING_SHARE,
    Collective,
    Group,
    bus,
    calibrated,
    hierarchical,
    placed,
    seconds,
    share,
)
from holdfast.plan.hardware import Cluster, Links
from holdfast.plan.models import known
from holdfast.plan.setup import Precision, Recompute, Setup, Strategy
from holdfast.plan.traffic import Part, traffic, volume

from .cases import jobs

A100, H200 = Cluster.parse("4 x 8 A100-80G"), Cluster.parse("4 x 8 H200")
HALF = Precision(compute=2, reduced=2)


@pytest.mark.parametrize(
    ("cluster", "collective", "group", "nbytes", "published"),
    [
        (A100, Collective.ALL_REDUCE, Group(8, 8), 1 << 26, 171.54e9),
        (A100, Collective.ALL_REDUCE, Group(8, 8), 1 << 34, 234.89e9),
        (H200, Collective.ALL_REDUCE, Group(8, 8), 1 << 34, 480e9),
        (H200, Collective.ALL_GATHER, Group(8, 8), 1 << 34, 361.4e9),
        (H200, Collective.ALL_REDUCE, Group(32, 8), 1 << 34, 369.06e9),
    ],
)
def test_the_bus_is_as_fast_as_published(cluster, collective, group, nbytes, published):
    """S. Bekman, "Machine Learning Engineering", network/README.md and todo.md."""
    took = seconds(collective, nbytes, group, cluster.links)
    assert share(collective, group.ranks) * nbytes / took == pytest.approx(published, rel=0.05)


@given(
    st.sampled_from(Collective), st.sampled_from([Group(1, 1), Group(8, 8), Group(64, 8), Group(16, 1)]),
    st.floats(1, 1e11), st.floats(1, 4),
)  # fmt: skip
def test_more_bytes_take_longer_and_more_bandwidth_never(collective, group, nbytes, times):
    links = A100.links
    took = seconds(collective, nbytes, group, links)
    assert took >= 0
    assert seconds(collective, nbytes * times, group, links) >= took
    faster = msgspec.structs.replace(links, inside=links.inside * times, outside=links.outside * times)
    assert seconds(collective, nbytes, group, faster) <= took
    assert (took == 0) == (group.ranks == 1)


def test_a_group_of_far_ranks_has_a_nic_for_each():
    assert placed(A100, 8, 1) == Group(8, 8)
    assert placed(A100, 32, 1) == Group(32, 8)
    assert placed(A100, 4, 8) == Group(4, 1)
    assert placed(A100, 16, 2) == Group(16, 4)


def test_a_measurement_counts_more_than_the_table():
    fit = Fit(collective="all_reduce", way="torch", backend="nccl", dtype="float32", ranks=8, hosts=1, latency_s=1.0,
              latency_interval_s=(1.0, 1.0), bandwidth=1e9, bandwidth_interval=(1e9, 1e9), worst_error=0.0)  # fmt: skip
    links = msgspec.structs.replace(A100.links, measured=(fit,))
    assert seconds(Collective.ALL_REDUCE, 1e9, Group(8, 8), links) == 2.0
    assert seconds(Collective.ALL_REDUCE, 1e9, Group(4, 4), links) < 1.0


def test_hierarchical_is_faster_where_the_network_is_slow():
    slow = Links(inside=300e9, outside=1.5e9)
    group = Group(32, 8)
    assert hierarchical(1e9, group, slow) == pytest.approx(seconds(Collective.ALL_REDUCE, 1e9, group, slow), rel=0.5)
    assert hierarchical(1e9, Group(8, 8), slow) == seconds(Collective.ALL_REDUCE, 1e9, Group(8, 8), slow)


@pytest.mark.parametrize(
    ("strategy", "accumulation", "times"),
    [
        (Strategy.DDP, 1, 2), (Strategy.DDP, 4, 2), (Strategy.ZERO1, 1, 2), (Strategy.ZERO1, 4, 2),
        (Strategy.ZERO2, 1, 2), (Strategy.ZERO2, 4, 5), (Strategy.ZERO3, 1, 3), (Strategy.FSDP2, 4, 12),
    ],
)  # fmt: skip
def test_volumes_are_those_of_the_paper(strategy, accumulation, times):
    """In parameters, of 2 bytes each: ZeRO, §7; what is done at each micro-batch counts as often."""
    model = known("gpt2")
    setup = Setup(strategy=strategy, data=8, accumulation=accumulation, precision=HALF)
    sent = sum(volume(model, setup).values())
    assert sent == pytest.approx(times * model.params * 2 * 7 / 8, rel=1e-6)


def test_hybrid_sharding_reduces_its_share_over_replicas():
    model = known("gpt2")
    found = volume(model, Setup(data=32, replicas=4, precision=HALF))
    assert found[Part.REPLICAS] == pytest.approx(2 * 3 / 4 * model.params * 2 / 8)
    assert found[Part.GATHER] == pytest.approx(2 * 7 / 8 * model.params * 2)


@pytest.mark.parametrize(("recompute", "times"), [(Recompute.NONE, 4), (Recompute.OPERATIONS, 5), (Recompute.FULL, 6)])
def test_tensor_parallelism_reduces_four_times_a_layer_and_again_what_is_recomputed(recompute, times):
    model = known("llama2-7b")
    found = volume(model, Setup(tensor=8, micro_batch=2, sequence=2048, recompute=recompute))
    assert found[Part.TENSOR] == pytest.approx(times * 32 * 2 * 7 / 8 * (2 * 2048 * 4096 * 2))


@given(jobs())
def test_a_volume_is_the_sum_of_its_calls(job):
    model, setup, _ = job
    calls = traffic(model, setup)
    assert sum(volume(model, setup).values()) == pytest.approx(sum(each.sent(setup.accumulation) for each in calls))
    assert all(each.sent(setup.accumulation) >= 0 for each in calls)


@given(
    inside=st.floats(80e9, 900e9),
    outside=st.floats(5e9, 100e9),
    a_host=st.sampled_from([2, 4, 8]),
    hosts=st.sampled_from([2, 3, 16]),
)
def test_links_are_found_again_from_what_they_reached(inside, outside, a_host, hosts):
    """A measurement of rings whose bus these links give tells the links."""
    links = Links(inside=inside, outside=min(outside, inside * RING_SHARE / a_host / NIC_SHARE))
    fits = []
    for ranks, on in ((2, 1), (a_host, 1), (a_host * hosts, hosts)):
        group = Group(ranks, ranks // on)
        rate = bus(Collective.ALL_GATHER, group, links) / share(Collective.ALL_GATHER, ranks)
        fits.append(fit(collective="all_gather", ranks=ranks, hosts=on, bandwidth=rate))
    fits.append(fit(collective="all_reduce", ranks=a_host, hosts=1, bandwidth=1e9, way="holdfast"))
    found = calibrated(Links(inside=1e9, outside=1e9, bus=5.0), fits)
    assert found.inside == pytest.approx(links.inside)
    assert found.outside == pytest.approx(links.outside)
    assert (len(found.measured), found.bus) == (3, 5.0)


def test_a_slow_bus_is_that_of_pcie():
    found = calibrated(
        Links(inside=300e9, outside=1e9), [fit(collective="all_reduce", ranks=2, hosts=1, bandwidth=9e9)]
    )
    assert bus(Collective.ALL_REDUCE, Group(4, 4), found) == pytest.approx(9e9)
    assert calibrated(found, []) == Links(inside=found.inside, outside=found.outside, bus=found.bus)


def fit(**given):
    usual = {"way": "torch", "backend": "nccl", "dtype": "float32", "latency_s": 1e-5, "worst_error": 0.1}
    interval = (given["bandwidth"] / 2, given["bandwidth"] * 2)
    return Fit(**usual | given, latency_interval_s=(0.0, 1e-4), bandwidth_interval=interval)
