"""Measurements on real ranks: all collectives and algorithms, verification, and timing accuracy."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue
from holdfast.core.measurements import ALGORITHMS, COLLECTIVES, BenchHost, BenchRequest, supports
from holdfast.preflight.bench.torch_worker import calls, session, timing_loop
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow
HOST = BenchHost(name="here", processor="a processor", cores=2)


def measure(_rank, request):
    return session.measure(request, HOST)


def test_all_collectives_and_algorithms_are_correct_and_equal_on_all_ranks(tmp_path):
    request = BenchRequest(
        collectives=COLLECTIVES,
        algorithms=tuple(ALGORITHMS),
        min_bytes=4096,
        max_bytes=100_000,
        factor=20,
        iters=3,
        warmup=1,
        pairs=True,
    )
    first, *others = run(3, measure, tmp_path, request)
    assert [other.series for other in others] == [first.series] * 2
    assert {(each.collective, each.way) for each in first.series} == {
        (collective, way)
        for collective in COLLECTIVES
        for way in ALGORITHMS
        if supports(collective, way)
    }
    assert {each.wrong for each in first.series} == {0}
    assert all(len(each.rows) == 2 for each in first.series)
    assert all(
        row.timing.wrong == 0 and row.timing.calls == 9
        for each in first.series
        for row in each.rows
    )
    assert [host.ranks for host in first.hosts] == [(0, 1, 2)]
    assert sorted(pair.ranks for pair in first.pairs) == [(0, 1), (0, 2), (1, 2)]
    assert all(pair.bandwidth > 0 for pair in first.pairs)


@pytest.mark.parametrize(
    ("dtype", "op"), [("bfloat16", "sum"), ("int8", "prod"), ("float64", "max"), ("uint8", "sum")]
)
def test_dtypes_and_operations_are_verified_exactly(dtype, op, tmp_path):
    request = BenchRequest(
        collectives=("all_reduce", "reduce_scatter", "reduce"),
        algorithms=("torch", "holdfast"),
        min_bytes=3000,
        max_bytes=3000,
        iters=1,
        warmup=0,
        dtype=dtype,
        op=op,
        root=1,
    )
    measurement = run(3, measure, tmp_path, request)[0]
    assert {each.wrong for each in measurement.series} == {0}
    assert all(row.timing.wrong == 0 for each in measurement.series for row in each.rows)


def measure_over_a_corrupting_link(rank, request):
    """Run an all_gather in which one element of rank 1's part arrives changed at rank 0."""
    gather = calls._gather

    def changed(output, source, group):
        gather(output, source, group=group)
        if rank == 0:
            output[output.numel() // 2 + 5] += 1

    calls._gather = changed
    return session.measure(request, HOST)


def test_a_single_incorrect_element_is_counted(tmp_path):
    request = BenchRequest(
        collectives=("all_gather", "all_reduce"),
        min_bytes=1 << 16,
        max_bytes=1 << 16,
        iters=1,
        warmup=0,
    )
    gathered, reduced = run(2, measure_over_a_corrupting_link, tmp_path, request)[1].series
    assert (gathered.rows[0].out_of_place.wrong, gathered.rows[0].in_place.wrong) == (1, 1)
    assert reduced.wrong == 0


def leave_stale_data(rank, request):
    """Run a sendrecv that leaves stale data in the receive buffer."""
    case = calls.BenchCase

    class Stale(case):
        def _send_to_next(self):
            super()._send_to_next()
            self._receive.fill_(1)

    session.BenchCase = Stale if rank else case
    return session.measure(request, HOST)


def test_stale_data_is_detected(tmp_path):
    request = BenchRequest(
        collectives=("sendrecv",), min_bytes=4096, max_bytes=4096, iters=1, warmup=0
    )
    (series,) = run(2, leave_stale_data, tmp_path, request)[0].series
    assert series.wrong > 900


def request_an_invalid_root(_rank, request):
    with pytest.raises(InvalidValue) as raised:
        session.measure(request, HOST)
    return str(raised.value)


def test_an_invalid_root_is_rejected_on_all_ranks(tmp_path):
    messages = run(
        2, request_an_invalid_root, tmp_path, BenchRequest(collectives=("broadcast",), root=2)
    )
    assert messages == ["invalid value for --root: 2 is not in 0..1"] * 2


def time_both_loops(_rank):
    """Return seconds per call of both loops, alternating, so that noise affects both."""
    tensor = torch.zeros(1000)
    by_hand, by_loop = [], []
    for _ in range(20):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(50):
            dist.all_reduce(tensor)
        by_hand.append((time.perf_counter() - began) / 50)
        dist.barrier()
        by_loop += [
            sum(timing_loop.time_calls(lambda: dist.all_reduce(tensor), 50, tensor.device)) / 50
        ]
    return min(by_hand), min(by_loop)


def test_loop_timing_agrees_with_a_handwritten_loop(tmp_path):
    by_hand, by_loop = run(2, time_both_loops, tmp_path)[0]
    assert by_hand / 4 < by_loop < by_hand * 4  # bench_overhead.py measure the difference
