"""Allocation of a batch to unequal GPUs: exact, within memory, and as fast as brute force."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_allocation import (
    GpuKind,
    SyncPoint,
    allocate_batch,
    is_possible,
    linear_kind,
    nearest_batches,
)
from tests.hypothesis_profiles import examples

#: Example of the issue: 2 fast GPUs with much memory, 2 slow GPUs with little, 64 samples.
A100, V100 = linear_kind("A100-80G", 2, 0.02, 0.010, 24), linear_kind("V100-32G", 2, 0.02, 0.031, 7)

TIMES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda allocation: tuple(each / 8 for each in allocation)
)
KINDS = st.lists(
    st.builds(GpuKind, st.sampled_from("ABC"), st.integers(1, 2), TIMES), min_size=1, max_size=2
)


def every_split(samples, most):
    """Return all splits of the samples into micro-batches, ignoring order."""
    if samples == 0:
        yield ()
    for first in range(min(samples, most), 0, -1):
        for rest in every_split(samples - first, first):
            yield first, *rest


def brute_force(kinds, batch, meeting, meet_s):
    """Return the minimum step time over all shares, micro-batch sizes and orders."""
    ranks = [kind for kind in kinds for _ in range(kind.ranks)]
    best = float("inf")
    for shares in itertools.product(range(1, batch + 1), repeat=len(ranks)):
        if sum(shares) != batch:
            continue
        splits = [
            [
                tuple(kind.rising_s[size - 1] for size in split)
                for split in every_split(share, kind.most)
            ]
            for kind, share in zip(ranks, shares, strict=True)
        ]
        if meeting is SyncPoint.STEP:
            best = min(best, max(min(map(sum, split)) for split in splits) + meet_s)
            continue
        for chosen in itertools.product(*splits):
            if len({len(each) for each in chosen}) == 1:
                rounds = len(chosen[0])
                orders = itertools.product(
                    *(set(itertools.permutations(each)) for each in chosen[1:])
                )
                for order in orders:
                    took = sum(map(max, zip(chosen[0], *order, strict=True)))
                    best = min(best, took + rounds * meet_s)
    return best


def check_invariants(kinds, batch, meeting, allocation):
    """Check the invariants of an allocation."""
    ranks = [kind for kind in kinds for _ in range(kind.ranks)]
    assert [share.rank for share in allocation.shares] == list(range(len(ranks)))
    assert sum(share.samples for share in allocation.shares) == batch
    assert sum(share.weight for share in allocation.shares) == pytest.approx(1)
    for share, kind in zip(allocation.shares, ranks, strict=True):
        assert all(1 <= size <= kind.most for size in share.micro_batches)
        assert share.busy_s <= allocation.step_s + 1e-9
    if meeting is SyncPoint.MICRO_BATCH:
        assert len({len(share.micro_batches) for share in allocation.shares}) == 1


@settings(max_examples=examples(150))
@given(KINDS, st.integers(1, 7), st.sampled_from(SyncPoint), st.sampled_from([0.0, 0.25]))
def test_no_other_allocation_is_faster(kinds, batch, meeting, meet_s):
    best = brute_force(kinds, batch, meeting, meet_s)
    if best == float("inf"):
        with pytest.raises(InvalidValue, match="a global batch of"):
            allocate_batch(kinds, batch, meeting, meet_s)
        return
    allocation = allocate_batch(kinds, batch, meeting, meet_s)
    check_invariants(kinds, batch, meeting, allocation)
    assert allocation.step_s == pytest.approx(best)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 0.1), st.floats(0.001, 0.1), st.integers(1, 24)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 800),
    st.sampled_from(SyncPoint),
)
def test_allocation_is_exact_and_never_slower_than_equal_shares(kinds, batch, meeting):
    gpu_kinds = [linear_kind(f"kind {at}", *each) for at, each in enumerate(kinds)]
    if not is_possible(gpu_kinds, batch, meeting):
        return
    allocation = allocate_batch(gpu_kinds, batch, meeting)
    check_invariants(gpu_kinds, batch, meeting, allocation)
    assert allocation.equal_s is None or allocation.step_s <= allocation.equal_s + 1e-9


@pytest.mark.parametrize("meeting", SyncPoint)
def test_two_fast_and_two_slow_ranks_get_64_samples_and_not_62(meeting):
    allocation = allocate_batch([A100, V100], 64, meeting)
    fast, slow = allocation.shares[0], allocation.shares[2]
    assert sum(share.samples for share in allocation.shares) == 64
    assert fast.samples > 2 * slow.samples
    assert allocation.equal_s / allocation.step_s > 1.4
    assert allocation.samples_per_s == pytest.approx(64 / allocation.step_s)


def test_more_samples_never_take_less_time():
    assert GpuKind("noisy", 1, (2.0, 1.9, 3.0)).rising_s == (2.0, 2.0, 3.0)


def test_an_impossible_batch_suggests_the_nearest_ones():
    three = [linear_kind("small", 3, 0.0, 1.0, 1)]
    assert nearest_batches(three, 64, SyncPoint.MICRO_BATCH) == (63, 66)
    with pytest.raises(
        InvalidValue, match=r"22 micro-batches are needed.*66 in all; use a batch of 63 or 66"
    ):
        allocate_batch(three, 64, SyncPoint.MICRO_BATCH)
    assert allocate_batch(three, 64, SyncPoint.STEP).step_s == 22
    with pytest.raises(
        InvalidValue, match="each of 4 ranks needs at least one sample; use a batch of 4"
    ):
        allocate_batch([A100, V100], 3, SyncPoint.STEP)


@pytest.mark.parametrize(
    ("kinds", "batch", "meet_s", "why"),
    [
        ([], 8, 0.0, "it is empty"),
        ([GpuKind("A", 0, (1.0,))], 8, 0.0, "less than 1"),
        ([GpuKind("A", 1, ())], 8, 0.0, "not even one sample fits"),
        ([GpuKind("A", 1, (1.0, float("nan")))], 8, 0.0, "positive number"),
        ([GpuKind("A", 1, (0.0,))], 8, 0.0, "positive number"),
        ([A100], 0, 0.0, "at least 1"),
        ([A100], 8, -1.0, "number of seconds"),
    ],
)
def test_invalid_jobs_are_rejected(kinds, batch, meet_s, why):
    with pytest.raises(InvalidValue, match=why):
        allocate_batch(kinds, batch, SyncPoint.MICRO_BATCH, meet_s)


def test_thousands_of_ranks_are_fast():
    kinds = [linear_kind("H100", 8192, 0.01, 0.004, 64), linear_kind("A100", 8192, 0.01, 0.009, 40)]
    allocation = allocate_batch(kinds, 1 << 16, SyncPoint.MICRO_BATCH, 0.002)
    assert sum(share.samples for share in allocation.shares) == 1 << 16
