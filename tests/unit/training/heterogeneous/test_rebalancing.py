"""Shares change only if the gain is large enough."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.training.heterogeneous.batch_shares import BatchShares, shares_of
from holdfast.training.heterogeneous.gpu_kinds import RankSpeed, RankSpeeds
from holdfast.training.heterogeneous.rebalancing import find_better_shares
from tests.hypothesis_profiles import examples

SPEEDS = RankSpeeds(tuple(RankSpeed(rank, "", (1, 64), (0.01, 0.64)) for rank in range(4)))
EQUAL = shares_of([[16]] * 4)


def test_slow_rank_gets_a_smaller_share_until_it_recovers():
    better = find_better_shares(SPEEDS, EQUAL, {2: 2.0}, 1.1)
    assert better.shares.batch == 64
    assert sum(better.shares.sizes[2]) in (9, 10)
    assert better.gain > 1.6
    recovered = find_better_shares(SPEEDS, better.shares, {2: 1.0}, 1.1)
    assert [sum(own) for own in recovered.shares.sizes] == [16] * 4


def test_small_gain_keeps_the_shares():
    assert find_better_shares(SPEEDS, EQUAL, {2: 1.05}, 1.1) is None
    assert find_better_shares(SPEEDS, EQUAL, dict.fromkeys(range(4), 3.0), 1.1) is None


def test_unmeasured_shares_are_kept():
    assert find_better_shares(SPEEDS, BatchShares(((65,), (1,), (1,), (1,))), {}, 1.1) is None


@settings(max_examples=examples(60))
@given(st.lists(st.floats(0.3, 8), min_size=4, max_size=4), st.integers(4, 200))
def test_new_shares_are_never_slower(factors, batch):
    now = shares_of(SPEEDS.allocate(batch))
    better = find_better_shares(SPEEDS, now, dict(enumerate(factors)), 1.1)
    if better is not None:
        assert better.gain >= 1.1
        assert better.shares.batch == batch
        assert find_better_shares(SPEEDS, better.shares, dict(enumerate(factors)), 1.1) is None
