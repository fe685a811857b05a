"""Group measured ranks into kinds of GPUs, and map shares back to ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_allocation import SyncPoint, is_possible
from holdfast.training.heterogeneous.gpu_kinds import RankSpeed, RankSpeeds
from tests.hypothesis_profiles import examples


def line(rank, sample_s, most, fixed_s=0.0):
    sizes = tuple(sorted({1, most}))
    return RankSpeed(rank, "GPU", sizes, tuple(fixed_s + sample_s * size for size in sizes))


MIXED = RankSpeeds((line(0, 0.03, 8), line(1, 0.01, 24), line(2, 0.031, 8), line(3, 0.0105, 24)))


def test_ranks_of_similar_speed_form_a_kind_with_the_slowest_speed():
    assert MIXED.groups() == ((1, 3), (0, 2))
    fast, slow = MIXED.kinds()
    assert (fast.ranks, fast.most, slow.ranks, slow.most) == (2, 24, 2, 8)
    assert fast.times_s[-1] == pytest.approx(24 * 0.0105)
    assert slow.times_s[0] == pytest.approx(0.031)


def test_equal_speed_with_different_memory_is_another_kind():
    assert RankSpeeds((line(0, 0.01, 24), line(1, 0.01, 12))).groups() == ((0,), (1,))


def test_small_steps_do_not_merge_distant_ranks():
    ranks = tuple(line(at, 0.01 * 1.06**at, 8) for at in range(6))
    assert RankSpeeds(ranks).groups() == ((0, 1), (2, 3), (4, 5))


def test_each_share_is_assigned_to_its_rank():
    found = MIXED.allocate(64)
    assert [share.rank for share in found.shares] == [0, 1, 2, 3]
    assert sum(share.samples for share in found.shares) == 64
    assert min(found.shares[1].samples, found.shares[3].samples) > 2 * max(
        found.shares[0].samples, 8 - 1
    )


def test_slowed_rank_gets_a_smaller_share():
    before, after = MIXED.allocate(64), MIXED.slowed({1: 2.0}).allocate(64)
    assert after.shares[1].samples < before.shares[1].samples
    assert after.shares[3].samples > before.shares[3].samples
    kept = [share.micro_batches for share in before.shares]
    assert MIXED.slowed({1: 2.0}).step_s(kept, SyncPoint.MICRO_BATCH) > after.step_s


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.floats(0.001, 0.1), st.integers(1, 16), st.floats(0, 0.05)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 200),
    st.sampled_from(SyncPoint),
)
def test_allocation_is_valid_for_any_ranks(found, batch, meeting):
    speeds = RankSpeeds(tuple(line(rank, *each) for rank, each in enumerate(found)))
    assert sorted(at for group in speeds.groups() for at in group) == list(range(len(found)))
    if not is_possible(speeds.kinds(), batch, meeting):
        with pytest.raises(InvalidValue):
            speeds.allocate(batch, meeting)
        return
    allocation = speeds.allocate(batch, meeting)
    assert sum(share.samples for share in allocation.shares) == batch
    sizes = [share.micro_batches for share in allocation.shares]
    assert all(max(own) <= speeds.ranks[at].most for at, own in enumerate(sizes))
    assert speeds.step_s(sizes, meeting) <= allocation.step_s * (1 + 1e-9)


def test_times_between_sizes_are_interpolated():
    assert RankSpeed(0, "", (1, 4), (1.0, 2.5)).table() == (1.0, 1.5, 2.0, 2.5)
    with pytest.raises(InvalidValue, match="at most 4 samples were measured"):
        RankSpeeds((RankSpeed(0, "", (1, 4), (1.0, 2.5)),)).step_s([(5,)], SyncPoint.STEP)


@pytest.mark.parametrize(
    ("speed", "why"),
    [
        (RankSpeed(3, "", (), (), "out of memory at 1"), "from 1 sample: out of memory at 1"),
        (RankSpeed(3, "", (2,), (1.0,)), "from 1 sample"),
        (RankSpeed(3, "", (1, 1), (1.0, 1.0)), "ascend"),
        (RankSpeed(3, "", (1,), (float("nan"),)), "positive number"),
    ],
)
def test_invalid_measurements_are_rejected_with_the_rank(speed, why):
    with pytest.raises(InvalidValue, match=f"rank 3.*{why}"):
        RankSpeeds((speed,))
    with pytest.raises(InvalidValue, match="the list is empty"):
        RankSpeeds(())
