"""What ranks measure: every collective by every way, right results told from wrong ones, a loop that adds nothing."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from holdfast.errors import BadValue
from holdfast.measured import COLLECTIVES, WAYS, Host, Wish, takes
from holdfast.runtime.bench import calls, loop, session
from tests.runtime.comm.ranks import run

pytestmark = pytest.mark.slow
HOST = Host(name="here", processor="a processor", cores=2)


def measures(_rank, wish):
    return session.measure(wish, HOST)


def test_all_collectives_by_all_ways_give_right_results_and_the_same_figures_on_all_ranks(tmp_path):
    wish = Wish(collectives=COLLECTIVES, ways=tuple(WAYS), min_bytes=4096, max_bytes=100_000, factor=20, iters=3,
                warmup=1, pairs=True)  # fmt: skip
    first, *others = run(3, measures, tmp_path, wish)
    assert [other.series for other in others] == [first.series] * 2
    assert {(each.collective, each.way) for each in first.series} == {
        (collective, way) for collective in COLLECTIVES for way in WAYS if takes(collective, way)
    }
    assert {each.wrong for each in first.series} == {0}
    assert all(len(each.rows) == 2 for each in first.series)
    assert all(row.timing.wrong == 0 and row.timing.calls == 9 for each in first.series for row in each.rows)
    assert [host.ranks for host in first.hosts] == [(0, 1, 2)]
    assert sorted(pair.ranks for pair in first.pairs) == [(0, 1), (0, 2), (1, 2)]
    assert all(pair.bandwidth > 0 for pair in first.pairs)


@pytest.mark.parametrize(("dtype", "op"), [("bfloat16", "sum"), ("int8", "prod"), ("float64", "max"), ("uint8", "sum")])
def test_dtypes_and_operations_are_checked_to_the_last_bit(dtype, op, tmp_path):
    wish = Wish(collectives=("all_reduce", "reduce_scatter", "reduce"), ways=("torch", "holdfast"), min_bytes=3000,
                max_bytes=3000, iters=1, warmup=0, dtype=dtype, op=op, root=1)  # fmt: skip
    found = run(3, measures, tmp_path, wish)[0]
    assert {each.wrong for each in found.series} == {0}
    assert all(row.timing.wrong == 0 for each in found.series for row in each.rows)


def measures_over_a_bad_link(rank, wish):
    """An all_gather in which one element of rank 1's part arrives changed at rank 0."""
    gather = calls._gather

    def changed(output, given, group):
        gather(output, given, group=group)
        if rank == 0:
            output[output.numel() // 2 + 5] += 1

    calls._gather = changed
    return session.measure(wish, HOST)


def test_a_single_element_that_is_wrong_on_one_rank_is_counted(tmp_path):
    wish = Wish(collectives=("all_gather", "all_reduce"), min_bytes=1 << 16, max_bytes=1 << 16, iters=1, warmup=0)
    gathered, reduced = run(2, measures_over_a_bad_link, tmp_path, wish)[1].series
    assert (gathered.rows[0].out_of_place.wrong, gathered.rows[0].in_place.wrong) == (1, 1)
    assert reduced.wrong == 0


def skips_its_part(rank, wish):
    """A send that hands on what it was given before, and not what it should."""
    case = calls.Case

    class Stale(case):
        def _send_on(self):
            super()._send_on()
            self._receive.fill_(1)

    session.Case = Stale if rank else case
    return session.measure(wish, HOST)


def test_a_buffer_that_nothing_was_written_to_is_not_taken_for_right(tmp_path):
    wish = Wish(collectives=("sendrecv",), min_bytes=4096, max_bytes=4096, iters=1, warmup=0)
    (series,) = run(2, skips_its_part, tmp_path, wish)[0].series
    assert series.wrong > 900


def asks_for_a_root_that_is_none(_rank, wish):
    with pytest.raises(BadValue) as told:
        session.measure(wish, HOST)
    return str(told.value)


def test_a_root_that_is_no_rank_is_refused_on_all_ranks(tmp_path):
    said = run(2, asks_for_a_root_that_is_none, tmp_path, Wish(collectives=("broadcast",), root=2))
    assert said == ["--root has a value that cannot be used: there is no rank 2 among 2; ranks count from 0"] * 2


def times_by_hand_and_by_the_loop(_rank):
    """Seconds a call of both, in turns, so that whatever else runs here disturbs both."""
    tensor = torch.zeros(1000)
    by_hand, by_loop = [], []
    for _ in range(20):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(50):
            dist.all_reduce(tensor)
        by_hand.append((time.perf_counter() - began) / 50)
        dist.barrier()
        by_loop += [sum(loop.times_of(lambda: dist.all_reduce(tensor), 50, tensor.device)) / 50]
    return min(by_hand), min(by_loop)


def test_the_loop_agrees_with_one_written_by_hand(tmp_path):
    by_hand, by_loop = run(2, times_by_hand_and_by_the_loop, tmp_path)[0]
    assert by_hand / 4 < by_loop < by_hand * 4  # the same thing in the same unit: how near is for bench_overhead.py
