"""Rules on measurements: wrong results, slower than the baseline, far below the link rate."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Level
from holdfast.core.measurements import (
    BenchHost,
    BenchRequest,
    BenchRow,
    BenchSeries,
    IterationTiming,
    LinkPair,
    Measurement,
)
from holdfast.preflight.bench.rules import judge, refuse_unlike

HOST = BenchHost(
    name="node1",
    processor="EPYC",
    cores=64,
    interface="eth0",
    line_rate=0.8e9,
    line="6,400 Mbit/s",
    ranks=(0, 1),
)


def timing(seconds, wrong=0):
    return IterationTiming(
        mean_s=seconds,
        min_s=0.95 * seconds,
        p50_s=seconds,
        p90_s=1.1 * seconds,
        p99_s=1.2 * seconds,
        max_s=1.3 * seconds,
        calls=20,
        wrong=wrong,
    )


def measured(bandwidth=1e9, latency_s=1e-4, wrong=0, hosts=(HOST,), **more):
    rows = tuple(
        BenchRow(
            size_bytes=size, count=size // 4, in_place=timing(latency_s + size / bandwidth, wrong)
        )
        for size in (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20)
    )
    series = BenchSeries(
        collective="all_reduce",
        way="torch",
        backend="gloo",
        dtype="float32",
        op="sum",
        root=-1,
        ranks=2,
        rows=rows,
        **more,
    )
    return Measurement(ranks=2, hosts=hosts, series=(series,))


def findings_of(now, before=None, tolerance=0.1):
    return [(finding.cause, finding.level) for finding in judge(now, before, tolerance)]


def test_fast_measurements_have_no_findings():
    assert findings_of(measured(), measured()) == []
    assert findings_of(measured(0.95e9), measured()) == []
    assert findings_of(measured(2e9, 5e-5), measured()) == []


def test_lower_bandwidth_is_an_error_with_collective_sizes_and_figures():
    (finding,) = judge(measured(0.5e9), measured(), 0.1)
    assert (finding.cause, finding.level) == ("collectives-slower-than-before", Level.ERROR)
    assert "all_reduce over gloo takes " in finding.message
    assert (
        "for messages from 1 MiB on (0.499 GB/s bus bandwidth, was 0.994 GB/s bus bandwidth)"
        in finding.message
    )
    assert finding.confidence == 0.95
    assert len(finding.evidence) == 2


def test_higher_latency_is_distinguished_from_lower_bandwidth():
    (finding,) = judge(measured(latency_s=4e-4), measured(), 0.4)
    assert "for messages up to 64 KiB" in finding.message


def test_tolerance_option_applies():
    assert findings_of(measured(0.85e9), measured(), 0.3) == []
    assert findings_of(measured(0.5e9), measured(), 1.5) == []


def test_a_difference_within_the_noise_has_less_confidence():
    slower = measured(0.85e9)
    rows = tuple(
        replace(row, in_place=replace(row.in_place, min_s=1e-9)) for row in slower.series[0].rows
    )
    noisy = replace(slower, series=(replace(slower.series[0], rows=rows),))
    (finding,) = judge(noisy, measured(), 0.1)
    assert finding.confidence == 0.55


def test_wrong_elements_are_an_error_at_any_speed():
    (finding,) = judge(measured(wrong=3))
    assert (finding.cause, finding.level) == ("collective-result-wrong", Level.ERROR)
    assert "15 incorrect elements, first at 8 bytes" in finding.message


def test_far_below_the_link_is_a_note():
    slow = replace(HOST, line_rate=12.5e9)
    (finding,) = judge(measured(hosts=(slow,)))
    assert (finding.cause, finding.level) == ("collectives-below-line-rate", Level.NOTE)
    assert (finding.subject.host, finding.subject.link) == ("node1", "eth0")
    assert (
        findings_of(measured(hosts=(slow, replace(HOST, line_rate=None)))) == []
    )  # no finding for an unknown rate
    assert findings_of(measured(hosts=(replace(slow, interface=""),))) == []  # copies within memory


def test_on_one_host_nccl_is_compared_with_gpu_links_and_gloo_is_not():
    gpus = replace(
        HOST,
        interface="",
        devices=("0x10de:0x2330",) * 2,
        line_rate=450e9,
        line="18 NVLinks of 25 GB/s",
    )
    over_gloo = measured(hosts=(gpus,))
    assert (
        over_gloo.limit(over_gloo.series[0]) == 450e9
    )  # memory bandwidth, because NCCL was not measured
    assert findings_of(over_gloo) == []
    over_nccl = replace(over_gloo.series[0], backend="nccl")
    both_backends = replace(over_gloo, series=(over_gloo.series[0], over_nccl))
    assert [both_backends.limit(series) for series in both_backends.series] == [None, 450e9]
    (finding,) = judge(both_backends)
    assert finding.message.startswith(
        "all_reduce over nccl, the fastest series, reached 0% of the 450 GB/s"
    )


@pytest.mark.parametrize(
    "other",
    [
        measured(hosts=(replace(HOST, processor="Xeon"),)),
        measured(hosts=(replace(HOST, ranks=(0,)), replace(HOST, name="node2", ranks=(1,)))),
        replace(measured(), ranks=4),
        replace(measured(), series=(replace(measured().series[0], dtype="int8"),)),
        replace(measured(), series=()),
    ],
)
def test_incomparable_baseline_is_rejected_with_one_sentence(other):
    with pytest.raises(InvalidValue, match=r"^invalid baseline: it ") as raised:
        list(judge(measured(), other))
    assert "\n" not in str(raised.value)


def test_hosts_of_the_same_kind_may_have_different_names():
    assert findings_of(measured(), measured(hosts=(replace(HOST, name="node7"),))) == []


def test_ranks_and_collectives_are_compared_before_measuring():
    refuse_unlike(measured(), BenchRequest(), 2)
    with pytest.raises(InvalidValue, match="with 2 ranks, not 8"):
        refuse_unlike(measured(), BenchRequest(), 8)
    with pytest.raises(InvalidValue, match="does not contain broadcast"):
        refuse_unlike(measured(), BenchRequest(collectives=("broadcast",)), 2)


def paired(slow, hosts=1):
    """Return a measurement of eight ranks whose pairs in ``slow`` have a tenth of the bandwidth."""
    per_host = 8 // hosts
    places = tuple(
        replace(HOST, name=f"node{number}", ranks=tuple(range(8))[number * per_host :][:per_host])
        for number in range(hosts)
    )
    pairs = tuple(
        LinkPair(ranks=(a, b), latency_s=1e-5, bandwidth=2e9 if (a, b) in slow else 20e9)
        for a in range(8)
        for b in range(a + 1, 8)
    )
    return Measurement(ranks=8, hosts=places, pairs=pairs)


def test_one_bad_pair_of_eight_ranks_is_found():
    assert list(judge(paired(set()))) == []
    [finding] = judge(paired({(2, 5)}))
    assert finding.cause == "slow-link"
    assert finding.message == (
        "the link between rank 2 (node0) and rank 5 (node0): 2 GB/s, but 20 in the median of 28 "
        "pairs"
    )
    assert finding.subject.link == "rank 2 (node0) - rank 5 (node0)"


def test_a_rank_whose_links_are_all_slow_is_named():
    [finding] = judge(paired({(3, other) for other in range(4, 8)} | {(a, 3) for a in range(3)}))
    assert finding.message.startswith("7 links of rank 3 (node0): ")


def test_pairs_of_hosts_are_compared_with_each_other_only():
    across = {(a, b) for a in range(4) for b in range(4, 8)}
    assert list(judge(paired(across, hosts=2))) == []
    [finding] = judge(paired({(0, 7)}, hosts=2))
    assert "node0" in finding.remedies[0].command
    assert "node1" in finding.remedies[0].command
