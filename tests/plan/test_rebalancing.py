"""New shares only where they pay, and the right ones."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.rebalancing import better
from holdfast.plan.shares import Shares, equal_shares, shares_of
from holdfast.plan.speeds import Speed, Speeds

SPEEDS = Speeds(tuple(Speed(rank, "", (1, 64), (0.01, 0.64)) for rank in range(4)))
EQUAL = equal_shares(4, 64)


def test_a_rank_that_slows_gets_less_and_gets_it_back():
    found = better(SPEEDS, EQUAL, {2: 2.0}, 1.1)
    assert found.shares.batch == 64
    assert sum(found.shares.sizes[2]) in (9, 10)
    assert found.gain > 1.6
    back = better(SPEEDS, found.shares, {2: 1.0}, 1.1)
    assert [sum(mine) for mine in back.shares.sizes] == [16] * 4


def test_what_pays_little_changes_nothing():
    assert better(SPEEDS, EQUAL, {2: 1.05}, 1.1) is None
    assert better(SPEEDS, EQUAL, dict.fromkeys(range(4), 3.0), 1.1) is None


def test_shares_that_were_never_measured_are_left():
    assert better(SPEEDS, Shares(((65,), (1,), (1,), (1,))), {}, 1.1) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.3, 8), min_size=4, max_size=4), st.integers(4, 200))
def test_it_is_never_worse(factors, batch):
    now = shares_of(SPEEDS.allot(batch))
    found = better(SPEEDS, now, dict(enumerate(factors)), 1.1)
    if found is not None:
        assert found.gain >= 1.1
        assert found.shares.batch == batch
        assert better(SPEEDS, found.shares, dict(enumerate(factors)), 1.1) is None
