"""Every pair occurs once, and no host twice in a round."""

import pytest

from holdfast.core.round_robin import round_count, round_pairs


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 33])
def test_every_pair_once_and_rounds_are_disjoint(size):
    pairs = []
    for number in range(round_count(size)):
        drawn = list(round_pairs(size, number))
        busy = [host for pair in drawn for host in pair]
        assert len(busy) == len(set(busy))
        pairs += drawn
    assert sorted(pairs) == [
        (first, second) for first in range(size) for second in range(first + 1, size)
    ]


@pytest.mark.parametrize(
    ("size", "number"), [(0, 0), (1, 0), (2, 1), (3, 3), (1024, 1023), (1023, 1023)]
)
def test_round_count(size, number):
    assert round_count(size) == number
