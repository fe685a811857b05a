"""New shares only if they pay."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.training.heterogeneous.batch_shares import BatchShares, shares_of
from holdfast.training.heterogeneous.gpu_kinds import RankSpeed, RankSpeeds
from holdfast.training.heterogeneous.rebalancing import find_better_shares
from tests.hypothesis_profiles import examples

SPEEDS = RankSpeeds(tuple(RankSpeed(rank, "", (1, 64), (0.01, 0.64)) for rank in range(4)))
EQUAL = shares_of([[16]] * 4)


def test_a_slow_rank_gets_less_and_later_its_share_back():
    found = find_better_shares(SPEEDS, EQUAL, {2: 2.0}, 1.1)
    assert found.shares.batch == 64
    assert sum(found.shares.sizes[2]) in (9, 10)
    assert found.gain > 1.6
    back = find_better_shares(SPEEDS, found.shares, {2: 1.0}, 1.1)
    assert [sum(mine) for mine in back.shares.sizes] == [16] * 4


def test_a_small_gain_changes_nothing():
    assert find_better_shares(SPEEDS, EQUAL, {2: 1.05}, 1.1) is None
    assert find_better_shares(SPEEDS, EQUAL, dict.fromkeys(range(4), 3.0), 1.1) is None


def test_shares_that_were_never_measured_are_kept():
    assert find_better_shares(SPEEDS, BatchShares(((65,), (1,), (1,), (1,))), {}, 1.1) is None


@settings(max_examples=examples(60))
@given(st.lists(st.floats(0.3, 8), min_size=4, max_size=4), st.integers(4, 200))
def test_it_is_never_worse(factors, batch):
    now = shares_of(SPEEDS.allocate(batch))
    found = find_better_shares(SPEEDS, now, dict(enumerate(factors)), 1.1)
    if found is not None:
        assert found.gain >= 1.1
        assert found.shares.batch == batch
        assert find_better_shares(SPEEDS, found.shares, dict(enumerate(factors)), 1.1) is None
