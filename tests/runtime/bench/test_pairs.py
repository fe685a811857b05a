"""Which ranks are measured with which, and when."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

from holdfast.runtime.bench.pairs import draw


def test_each_pair_is_drawn_once_and_nobody_is_in_two_pairs_of_a_round():
    rounds = draw([3, 8, 9, 20, 21])
    assert sorted(pair for each in rounds for pair in each) == [
        (a, b) for a in (3, 8, 9, 20, 21) for b in (3, 8, 9, 20, 21) if a < b
    ]
    for each in rounds:
        busy = [rank for pair in each for rank in pair]
        assert len(busy) == len(set(busy))


def test_a_thousand_hosts_are_drawn_once_and_not_once_a_round():
    begun = time.process_time()
    assert sum(map(len, draw(range(1024)))) == 1024 * 1023 // 2
    assert time.process_time() - begun < 20
