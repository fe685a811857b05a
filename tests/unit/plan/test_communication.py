"""Compare collective times and volumes with published figures."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.plan.hardware import Cluster, LinkRates
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import ActivationCheckpointing, Precision, ShardingStrategy, TrainingSetup
from holdfast.plan.step_time.communication import (
    NIC_SHARE,
    RING_SHARE,
    CollectiveKind,
    PlacedGroup,
    bus_bandwidth,
    bus_factor,
    calibrate_links,
    collective_time,
    place_group,
)
from holdfast.plan.step_time.traffic import TrafficKind, list_calls

from .setup_strategies import jobs

A100, H200 = Cluster.parse("4 x 8 A100-80G"), Cluster.parse("4 x 8 H200")
HALF = Precision(compute=2, reduced=2)


def bytes_sent_by_kind(model, setup):
    """Return the bytes that a rank sends in a step, by kind."""
    sums = Counter()
    for each in list_calls(model, setup):
        calls = (each.forward + each.backward) * setup.accumulation + each.once
        sums[each.kind] += calls * each.nbytes * bus_factor(each.collective, each.ranks)
    return sums


@pytest.mark.parametrize(
    ("cluster", "collective", "group", "nbytes", "published"),
    [
        (A100, CollectiveKind.ALL_REDUCE, PlacedGroup(8, 8), 1 << 26, 171.54e9),
        (A100, CollectiveKind.ALL_REDUCE, PlacedGroup(8, 8), 1 << 34, 234.89e9),
        (H200, CollectiveKind.ALL_REDUCE, PlacedGroup(8, 8), 1 << 34, 480e9),
        (H200, CollectiveKind.ALL_GATHER, PlacedGroup(8, 8), 1 << 34, 361.4e9),
        (H200, CollectiveKind.ALL_REDUCE, PlacedGroup(32, 8), 1 << 34, 369.06e9),
    ],
)
def test_bus_bandwidth_matches_published_figures(cluster, collective, group, nbytes, published):
    """S. Bekman, "Machine Learning Engineering", network/README.md and todo.md."""
    duration = collective_time(collective, nbytes, group, cluster.links)
    assert bus_factor(collective, group.ranks) * nbytes / duration == pytest.approx(
        published, rel=0.05
    )


@given(
    st.sampled_from(CollectiveKind),
    st.sampled_from([PlacedGroup(1, 1), PlacedGroup(8, 8), PlacedGroup(64, 8), PlacedGroup(16, 1)]),
    st.floats(1, 1e11),
    st.floats(1, 4),
)
def test_time_grows_with_bytes_and_not_with_bandwidth(collective, group, nbytes, times):
    links = A100.links
    duration = collective_time(collective, nbytes, group, links)
    assert duration >= 0
    assert collective_time(collective, nbytes * times, group, links) >= duration
    faster = msgspec.structs.replace(
        links, intra_node=links.intra_node * times, inter_node=links.inter_node * times
    )
    assert collective_time(collective, nbytes, group, faster) <= duration
    assert (duration == 0) == (group.ranks == 1)


def test_strided_groups_use_one_nic_per_rank():
    assert place_group(A100, 8, 1) == PlacedGroup(8, 8)
    assert place_group(A100, 32, 1) == PlacedGroup(32, 8)
    assert place_group(A100, 4, 8) == PlacedGroup(4, 1)
    assert place_group(A100, 16, 2) == PlacedGroup(16, 4)


def test_measured_fit_overrides_the_table():
    fit = AlphaBetaFit(
        collective="all_reduce",
        way="torch",
        backend="nccl",
        dtype="float32",
        ranks=8,
        hosts=1,
        latency_s=1.0,
        latency_interval_s=(1.0, 1.0),
        bandwidth=1e9,
        bandwidth_interval=(1e9, 1e9),
        worst_error=0.0,
    )
    links = msgspec.structs.replace(A100.links, measured=(fit,))
    assert collective_time(CollectiveKind.ALL_REDUCE, 1e9, PlacedGroup(8, 8), links) == 2.0
    assert collective_time(CollectiveKind.ALL_REDUCE, 1e9, PlacedGroup(4, 4), links) < 1.0


@pytest.mark.parametrize(
    ("strategy", "accumulation", "times"),
    [
        (ShardingStrategy.DDP, 1, 2),
        (ShardingStrategy.DDP, 4, 2),
        (ShardingStrategy.ZERO1, 1, 2),
        (ShardingStrategy.ZERO1, 4, 2),
        (ShardingStrategy.ZERO2, 1, 2),
        (ShardingStrategy.ZERO2, 4, 5),
        (ShardingStrategy.ZERO3, 1, 3),
        (ShardingStrategy.FSDP2, 4, 12),
    ],
)
def test_volumes_match_the_paper(strategy, accumulation, times):
    """ZeRO paper, §7, in 2-byte parameters; per-micro-batch communication is counted each time."""
    model = get_known_model("gpt2")
    setup = TrainingSetup(strategy=strategy, data=8, accumulation=accumulation, precision=HALF)
    sent = sum(bytes_sent_by_kind(model, setup).values())
    assert sent == pytest.approx(times * model.params * 2 * 7 / 8, rel=1e-6)


def test_hybrid_sharding_reduces_its_shard_across_replicas():
    model = get_known_model("gpt2")
    result = bytes_sent_by_kind(model, TrainingSetup(data=32, replicas=4, precision=HALF))
    assert result[TrafficKind.REPLICAS] == pytest.approx(2 * 3 / 4 * model.params * 2 / 8)
    assert result[TrafficKind.GATHER] == pytest.approx(2 * 7 / 8 * model.params * 2)


@pytest.mark.parametrize(
    ("recompute", "times"),
    [
        (ActivationCheckpointing.NONE, 4),
        (ActivationCheckpointing.OPERATIONS, 5),
        (ActivationCheckpointing.FULL, 6),
    ],
)
def test_tensor_parallel_calls_per_layer(recompute, times):
    model = get_known_model("llama2-7b")
    result = bytes_sent_by_kind(
        model, TrainingSetup(tensor=8, micro_batch=2, sequence=2048, recompute=recompute)
    )
    assert result[TrafficKind.TENSOR] == pytest.approx(
        times * 32 * 2 * 7 / 8 * (2 * 2048 * 4096 * 2)
    )


@given(jobs())
def test_no_call_sends_negative_bytes(job):
    model, setup, _ = job
    assert all(sent >= 0 for sent in bytes_sent_by_kind(model, setup).values())


@given(
    inside=st.floats(80e9, 900e9),
    outside=st.floats(5e9, 100e9),
    a_host=st.sampled_from([2, 4, 8]),
    hosts=st.sampled_from([2, 3, 16]),
)
def test_calibration_recovers_links(inside, outside, a_host, hosts):
    """Calibration on rings measured at these links' bus bandwidth returns the links."""
    links = LinkRates(
        intra_node=inside, inter_node=min(outside, inside * RING_SHARE / a_host / NIC_SHARE)
    )
    fits = []
    for ranks, on in ((2, 1), (a_host, 1), (a_host * hosts, hosts)):
        group = PlacedGroup(ranks, ranks // on)
        rate = bus_bandwidth(CollectiveKind.ALL_GATHER, group, links) / bus_factor(
            CollectiveKind.ALL_GATHER, ranks
        )
        fits.append(fit(collective="all_gather", ranks=ranks, hosts=on, bandwidth=rate))
    fits.append(fit(collective="all_reduce", ranks=a_host, hosts=1, bandwidth=1e9, way="holdfast"))
    result = calibrate_links(LinkRates(intra_node=1e9, inter_node=1e9, bus=5.0), fits)
    assert result.intra_node == pytest.approx(links.intra_node)
    assert result.inter_node == pytest.approx(links.inter_node)
    assert (len(result.measured), result.bus) == (3, 5.0)


def test_slow_bus_counts_as_pcie():
    result = calibrate_links(
        LinkRates(intra_node=300e9, inter_node=1e9),
        [fit(collective="all_reduce", ranks=2, hosts=1, bandwidth=9e9)],
    )
    assert bus_bandwidth(CollectiveKind.ALL_REDUCE, PlacedGroup(4, 4), result) == pytest.approx(9e9)
    assert calibrate_links(result, []) == LinkRates(
        intra_node=result.intra_node, inter_node=result.inter_node, bus=result.bus
    )


def fit(**values):
    defaults = {
        "way": "torch",
        "backend": "nccl",
        "dtype": "float32",
        "latency_s": 1e-5,
        "worst_error": 0.1,
    }
    interval = (values["bandwidth"] / 2, values["bandwidth"] * 2)
    return AlphaBetaFit(
        **defaults | values, latency_interval_s=(0.0, 1e-4), bandwidth_interval=interval
    )
