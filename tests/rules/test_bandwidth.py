"""Rules over measurements: wrong results, slower than before, far below the link."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import BadValue
from holdfast.findings import Level
from holdfast.measured import Host, Measurement, Row, Series, Timing, Wish
from holdfast.rules.bandwidth import judge, refuse_unlike

HOST = Host(name="node1", processor="EPYC", cores=64, interface="eth0", line_rate=0.8e9, line="6,400 Mbit/s",
            ranks=(0, 1))  # fmt: skip


def timing(seconds, wrong=0):
    return Timing(mean_s=seconds, min_s=0.95 * seconds, p50_s=seconds, p90_s=1.1 * seconds, p99_s=1.2 * seconds,
                  max_s=1.3 * seconds, calls=20, wrong=wrong)  # fmt: skip


def measured(bandwidth=1e9, latency_s=1e-4, wrong=0, hosts=(HOST,), **more):
    rows = tuple(Row(size_bytes=size, count=size // 4, in_place=timing(latency_s + size / bandwidth, wrong))
                 for size in (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20))  # fmt: skip
    series = Series(collective="all_reduce", way="torch", backend="gloo", dtype="float32", op="sum", root=-1, ranks=2,
                    rows=rows, **more)  # fmt: skip
    return Measurement(ranks=2, hosts=hosts, series=(series,))


def found(now, before=None, tolerance=0.1):
    return [(claim.cause, claim.level) for claim in judge(now, before, tolerance)]


def test_what_is_as_fast_as_before_and_near_to_the_link_is_no_finding():
    assert found(measured(), measured()) == []
    assert found(measured(0.95e9), measured()) == []
    assert found(measured(2e9, 5e-5), measured()) == []


def test_a_smaller_bandwidth_is_an_error_that_names_collective_sizes_and_figures():
    (claim,) = judge(measured(0.5e9), measured(), 0.1)
    assert (claim.cause, claim.level) == ("collectives-slower-than-before", Level.ERROR)
    assert "all_reduce over gloo takes " in claim.message
    assert "for messages from 1 MiB on (0.499 GB/s on the bus, was 0.994 GB/s on the bus)" in claim.message
    assert claim.confidence == 0.95
    assert len(claim.evidence) == 2


def test_a_longer_latency_is_told_from_a_smaller_bandwidth():
    (claim,) = judge(measured(latency_s=4e-4), measured(), 0.4)
    assert "for messages up to 64 KiB" in claim.message


def test_the_tolerance_is_the_users():
    assert found(measured(0.85e9), measured(), 0.3) == []
    assert found(measured(0.5e9), measured(), 1.5) == []


def test_what_lies_within_the_noise_is_said_with_less_confidence():
    slower = measured(0.85e9)
    rows = tuple(replace(row, in_place=replace(row.in_place, min_s=1e-9)) for row in slower.series[0].rows)
    noisy = replace(slower, series=(replace(slower.series[0], rows=rows),))
    (claim,) = judge(noisy, measured(), 0.1)
    assert claim.confidence == 0.55


def test_wrong_elements_are_an_error_whatever_the_speed():
    (claim,) = judge(measured(wrong=3))
    assert (claim.cause, claim.level) == ("collective-result-wrong", Level.ERROR)
    assert "15 wrong elements, first at 8 bytes" in claim.message


def test_far_below_the_link_is_a_note():
    slow = replace(HOST, line_rate=12.5e9)
    (claim,) = judge(measured(hosts=(slow,)))
    assert (claim.cause, claim.level) == ("collectives-below-line-rate", Level.NOTE)
    assert (claim.subject.host, claim.subject.link) == ("node1", "eth0")
    assert found(measured(hosts=(slow, replace(HOST, line_rate=None)))) == []  # unknown is not judged
    assert found(measured(hosts=(replace(slow, interface=""),))) == []  # copies in memory


def test_on_one_host_nccl_is_held_against_the_gpus_links_and_gloo_beside_it_is_not():
    gpus = replace(HOST, interface="", devices=("0x10de:0x2330",) * 2, line_rate=450e9, line="18 NVLinks of 25 GB/s")
    over_gloo = measured(hosts=(gpus,))
    assert over_gloo.limit(over_gloo.series[0]) == 450e9  # memory's, as no NCCL was measured
    assert found(over_gloo) == []
    over_nccl = replace(over_gloo.series[0], backend="nccl")
    both = replace(over_gloo, series=(over_gloo.series[0], over_nccl))
    assert [both.limit(series) for series in both.series] == [None, 450e9]
    (claim,) = judge(both)
    assert claim.message.startswith("all_reduce over nccl was the fastest and reached 0% of 450 GB/s")


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
def test_a_baseline_that_cannot_be_compared_is_refused_in_one_sentence(other):
    with pytest.raises(BadValue, match=r"^the baseline has a value that cannot be used: it ") as told:
        list(judge(measured(), other))
    assert "\n" not in str(told.value)


def test_hosts_of_the_same_kind_may_have_other_names():
    assert found(measured(), measured(hosts=(replace(HOST, name="node7"),))) == []


def test_before_time_is_spent_ranks_and_collectives_are_compared():
    refuse_unlike(measured(), Wish(), 2)
    with pytest.raises(BadValue, match="with 2 ranks, and this is with 8"):
        refuse_unlike(measured(), Wish(), 8)
    with pytest.raises(BadValue, match="has no broadcast"):
        refuse_unlike(measured(), Wish(collectives=("broadcast",)), 2)
