"""The schedule of pairwise measurements."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

from holdfast.preflight.bench.torch_worker.pairs import schedule_rounds


def test_each_pair_once_and_rounds_are_disjoint():
    rounds = schedule_rounds([3, 8, 9, 20, 21])
    assert sorted(pair for each in rounds for pair in each) == [
        (a, b) for a in (3, 8, 9, 20, 21) for b in (3, 8, 9, 20, 21) if a < b
    ]
    for each in rounds:
        busy = [rank for pair in each for rank in pair]
        assert len(busy) == len(set(busy))


def test_scheduling_a_thousand_hosts_is_fast():
    begun = time.process_time()
    assert sum(map(len, schedule_rounds(range(1024)))) == 1024 * 1023 // 2
    assert time.process_time() - begun < 20
