"""Batch shares: every sample once, equal steps and collectives, for any configuration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_allocation import GpuKind, SyncPoint, allocate_batch
from holdfast.training.heterogeneous.batch_shares import BatchShares, shares_of
from tests.hypothesis_profiles import examples


@st.composite
def any_shares(draw):
    """Draw shares of up to 5 ranks, in lockstep or with different numbers of micro-batches."""
    world, meeting = draw(st.integers(1, 5)), draw(st.sampled_from(SyncPoint))
    rounds = draw(st.integers(1, 4))
    counts = [
        rounds if meeting is SyncPoint.MICRO_BATCH else draw(st.integers(1, 4))
        for _ in range(world)
    ]
    return BatchShares(
        tuple(tuple(draw(st.integers(1, 6)) for _ in range(count)) for count in counts), meeting
    )


@settings(max_examples=examples(300))
@given(any_shares(), st.integers(0, 400))
def test_an_epoch_is_split_into_divisible_batches(shares, samples):
    pieces = shares.epoch(samples)
    if pieces is None:
        return
    assert sum(pieces) == samples
    assert all(0 < piece <= shares.batch for piece in pieces)
    assert len(pieces) <= samples // shares.batch + 1
    for piece in set(pieces):
        allocated = BatchShares(
            shares.of(piece), shares.sync_point
        )  # rejects unequal numbers in lockstep
        assert allocated.batch == piece
        for own, whole in zip(allocated.sizes, shares.sizes, strict=True):
            assert len(own) <= len(whole)
            assert all(0 < size <= most for size, most in zip(own, whole, strict=False))


@settings(max_examples=examples(200))
@given(any_shares(), st.integers(0, 300), st.integers(0, 40))
def test_the_rest_after_any_steps_is_split_as_before(shares, samples, steps):
    """A resumed job runs the same steps."""
    pieces = shares.epoch(samples)
    if pieces is not None:
        assert shares.epoch(sum(pieces[steps:])) == pieces[steps:]


@settings(max_examples=examples(200))
@given(any_shares(), st.integers(1, 300))
def test_divisible_epochs_are_accepted(shares, samples):
    """If any two final batches work, the check accepts them."""
    whole, rest = divmod(samples, shares.batch)
    together = rest + shares.batch if whole else rest
    fits = any(
        shares.possible(one) and (one == together or shares.possible(together - one))
        for one in range(1, min(together, shares.batch) + 1)
    )
    assert (shares.epoch(samples) is not None) == (fits or not rest)


def test_the_last_batch_keeps_the_proportions():
    shares = BatchShares(((24, 0 + 1), (8, 1)))
    assert shares.batch == 34
    assert shares.of(17) == ((13,), (4,))
    assert BatchShares(((6, 6), (2, 2))).of(12) == ((4, 4), (2, 2))
    assert BatchShares(((1, 1), (1, 1))).epoch(5) is None
    assert BatchShares(((4,), (4,))).epoch(17) == [8, 7, 2]


def test_an_allocation_keeps_its_sync_point_and_sizes_imply_theirs():
    kinds = [GpuKind("fast", 1, (1.0, 1.1, 1.2, 1.3)), GpuKind("slow", 1, (1.0, 2.0))]
    for meeting in SyncPoint:
        found = shares_of(allocate_batch(kinds, 6, meeting))
        assert (found.sync_point, found.batch, found.world) == (meeting, 6, 2)
    assert shares_of([[2, 2], [4]]).sync_point is SyncPoint.STEP
    assert shares_of([[2, 2], [4, 1]]).sync_point is SyncPoint.MICRO_BATCH


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((), "they are empty"),
        (((1,), ()), "rank 1 has"),
        (((0,),), "rank 0 has"),
        (((1, 1), (2,)), "ranks make 1 and 2"),
    ],
)
def test_shares_that_would_deadlock_are_rejected(sizes, why):
    with pytest.raises(InvalidValue, match=why):
        BatchShares(sizes)


def test_every_rank_needs_a_sample():
    with pytest.raises(InvalidValue, match="rank 2 has"):
        BatchShares(((1,), (1,), (0,)))
    with pytest.raises(InvalidValue, match="each of 2 ranks needs a sample"):
        BatchShares(((5,), (5,))).of(1)
