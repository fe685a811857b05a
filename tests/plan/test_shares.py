"""Shares of ranks: every sample once, equal numbers of steps and collectives, for any ranks, batch and data set."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.plan.batches import Kind, Meeting, allot
from holdfast.plan.shares import Shares, equal_shares, shares_of


@st.composite
def any_shares(draw):
    """Shares of up to 5 ranks; in lockstep, or each with its own number of micro-batches."""
    world, meeting = draw(st.integers(1, 5)), draw(st.sampled_from(Meeting))
    rounds = draw(st.integers(1, 4))
    counts = [rounds if meeting is Meeting.MICRO_BATCH else draw(st.integers(1, 4)) for _ in range(world)]
    return Shares(tuple(tuple(draw(st.integers(1, 6)) for _ in range(count)) for count in counts), meeting)


@settings(max_examples=300, deadline=None)
@given(any_shares(), st.integers(0, 400))
def test_an_epoch_is_cut_into_batches_that_can_all_be_dealt_out(shares, samples):
    pieces = shares.epoch(samples)
    if pieces is None:
        return
    assert sum(pieces) == samples
    assert all(0 < piece <= shares.batch for piece in pieces)
    assert len(pieces) <= samples // shares.batch + 1
    for piece in set(pieces):
        dealt = Shares(shares.of(piece), shares.meeting)  # which refuses unequal numbers in lockstep
        assert dealt.batch == piece
        for mine, whole in zip(dealt.sizes, shares.sizes, strict=True):
            assert len(mine) <= len(whole)
            assert all(0 < size <= most for size, most in zip(mine, whole, strict=False))


@settings(max_examples=200, deadline=None)
@given(any_shares(), st.integers(0, 300), st.integers(0, 40))
def test_what_is_left_after_any_steps_is_cut_as_before(shares, samples, steps):
    """So that a job that resumes makes the same steps."""
    pieces = shares.epoch(samples)
    if pieces is not None:
        assert shares.epoch(sum(pieces[steps:])) == pieces[steps:]


@settings(max_examples=200, deadline=None)
@given(any_shares(), st.integers(1, 300))
def test_nothing_that_could_be_dealt_out_is_refused(shares, samples):
    """Two batches at the end always do, if any two do."""
    whole, rest = divmod(samples, shares.batch)
    together = rest + shares.batch if whole else rest
    fits = any(
        shares.possible(one) and (one == together or shares.possible(together - one))
        for one in range(1, min(together, shares.batch) + 1)
    )
    assert (shares.epoch(samples) is not None) == (fits or not rest)


def test_the_last_batch_keeps_the_proportions():
    shares = Shares(((24, 0 + 1), (8, 1)))
    assert shares.batch == 34
    assert shares.of(17) == ((13,), (4,))
    assert Shares(((6, 6), (2, 2))).of(12) == ((4, 4), (2, 2))
    assert Shares(((1, 1), (1, 1))).epoch(5) is None
    assert Shares(((4,), (4,))).epoch(17) == [8, 7, 2]


def test_an_allotment_keeps_its_meeting_and_plain_sizes_tell_theirs():
    kinds = [Kind("fast", 1, (1.0, 1.1, 1.2, 1.3)), Kind("slow", 1, (1.0, 2.0))]
    for meeting in Meeting:
        found = shares_of(allot(kinds, 6, meeting))
        assert (found.meeting, found.batch, found.world) == (meeting, 6, 2)
    assert shares_of([[2, 2], [4]]).meeting is Meeting.STEP
    assert shares_of([[2, 2], [4, 1]]).meeting is Meeting.MICRO_BATCH


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((), "no rank"), (((1,), ()), "rank 1 has"), (((0,),), "rank 0 has"), (((1, 1), (2,)), "ranks make 1 and 2")],
)
def test_what_would_hang_is_refused(sizes, why):
    with pytest.raises(BadValue, match=why):
        Shares(sizes)


def test_equal_shares_are_what_is_done_without_a_plan():
    assert equal_shares(3, 10).sizes == ((4,), (3,), (3,))
    assert equal_shares(2, 10, 2).sizes == ((3, 2), (3, 2))
    with pytest.raises(BadValue, match="rank 2 has"):
        equal_shares(3, 2)
    with pytest.raises(BadValue, match="each of 2 ranks needs a sample"):
        equal_shares(2, 10).of(1)
