"""Every pair once, nobody twice in a round."""

import pytest

from holdfast.tournament import pairs, rounds


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 33])
def test_every_pair_meets_once_and_no_host_is_in_two_pairs_at_once(size):
    met = []
    for number in range(rounds(size)):
        drawn = list(pairs(size, number))
        busy = [host for pair in drawn for host in pair]
        assert len(busy) == len(set(busy))
        met += drawn
    assert sorted(met) == [(first, second) for first in range(size) for second in range(first + 1, size)]


@pytest.mark.parametrize(("size", "number"), [(0, 0), (1, 0), (2, 1), (3, 3), (1024, 1023), (1023, 1023)])
def test_as_many_rounds_as_a_host_has_partners(size, number):
    assert rounds(size) == number
