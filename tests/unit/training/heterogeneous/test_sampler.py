"""The sampler yields every sample once, with equal steps on every rank, also after interruptions."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import holdfast
from holdfast.core.errors import CheckpointMismatch, InvalidValue
from holdfast.training.heterogeneous.batch_allocation import SyncPoint
from holdfast.training.heterogeneous.batch_shares import BatchShares
from holdfast.training.heterogeneous.gpu_kinds import RankSpeed, RankSpeeds
from tests.hypothesis_profiles import examples

MIXED = BatchShares(((5, 4), (2, 2), (1, 1)))


@st.composite
def any_shares(draw, world=None):
    world = world or draw(st.integers(1, 4))
    meeting, rounds = draw(st.sampled_from(SyncPoint)), draw(st.integers(1, 3))
    counts = [
        rounds if meeting is SyncPoint.MICRO_BATCH else draw(st.integers(1, 3))
        for _ in range(world)
    ]
    return BatchShares(
        tuple(tuple(draw(st.integers(1, 5)) for _ in range(count)) for count in counts), meeting
    )


def samplers(length, shares, last="drop", **options):
    return [
        holdfast.HeterogeneousSampler(length, shares, rank=rank, last=last, **options)
        for rank in range(shares.world)
    ]


def samplers_if_valid(length, shares, last, **options):
    """Return one sampler per rank, or None if holdfast rejects the data."""
    try:
        return samplers(length, shares, last, **options)
    except InvalidValue:
        return None


@settings(max_examples=examples(250))
@given(
    any_shares(),
    st.integers(1, 200),
    st.sampled_from(["drop", "deal"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_sample_is_used_once_with_equal_steps_on_every_rank(
    shares, length, last, epoch, shuffle
):
    ranks = samplers_if_valid(length, shares, last, shuffle=shuffle)
    if ranks is None:
        assert last == "deal" or length < shares.batch
        return
    for each in ranks:
        each.set_epoch(epoch)
    consumed = [list(each) for each in ranks]
    assert [len(each) for each in ranks] == list(map(len, consumed))
    assert len({each.steps_left for each in ranks}) == 1
    if shares.sync_point is SyncPoint.MICRO_BATCH:
        assert len({len(each) for each in consumed}) == 1
    used = Counter(itertools.chain.from_iterable(itertools.chain.from_iterable(consumed)))
    assert set(used.values()) == {1}
    assert len(used) == (length if last == "deal" else length - length % shares.batch)
    assert all(consumed[rank] for rank in range(shares.world))
    assert all(
        batch and len(batch) <= max(shares.sizes[rank])
        for rank in range(shares.world)
        for batch in consumed[rank]
    )


@settings(max_examples=examples(150))
@given(
    any_shares(),
    any_shares(),
    st.integers(1, 150),
    st.integers(0, 8),
    st.sampled_from(["drop", "deal"]),
)
def test_other_ranks_and_shares_resume_a_stopped_job(shares, others, length, steps, last):
    """No sample is repeated, and samples are dropped only at the end."""
    ranks = samplers_if_valid(length, shares, last, seed=3)
    if ranks is None:
        return
    used, state = Counter(), None
    loaders = [DataLoader(range(length), batch_sampler=each, collate_fn=list) for each in ranks]
    for step_batches in itertools.islice(
        zip(*(s.steps(at) for s, at in zip(ranks, loaders, strict=True)), strict=True), steps
    ):
        used.update(sample for own in step_batches for batch in own for sample in batch)
        state = ranks[0].state_dict()
        assert all(each.state_dict() == state for each in ranks)
    state = state or ranks[0].state_dict()
    resumed = samplers_if_valid(length, others, last, seed=99)
    try:
        for each in resumed or ():
            each.load_state_dict(state)
    except InvalidValue:
        assert last == "deal"
        return
    for each in resumed or ():
        used.update(itertools.chain.from_iterable(each))
    assert not used or set(used.values()) == {1}
    if resumed:
        left = (length - state["taken"]) % others.batch if last == "drop" else 0
        assert sum(used.values()) == length - left


@settings(max_examples=examples(80))
@given(
    st.lists(
        st.tuples(st.floats(0.001, 0.1), st.integers(1, 12), st.floats(0, 0.05)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 60),
    st.integers(1, 300),
    st.sampled_from(SyncPoint),
)
def test_allocation_of_any_speeds_gives_valid_batches(found, batch, length, meeting):
    """From measured speeds to batches of each rank: exact, within memory, and in lockstep."""
    ranks = tuple(
        RankSpeed(
            rank,
            "",
            tuple(sorted({1, most})),
            tuple(fixed + each * size for size in sorted({1, most})),
        )
        for rank, (each, most, fixed) in enumerate(found)
    )
    try:
        allotment = RankSpeeds(ranks).allocate(batch, meeting)
        ranks_samplers = [
            holdfast.HeterogeneousSampler(length, allotment, rank=rank)
            for rank in range(len(ranks))
        ]
    except InvalidValue:
        return
    consumed = [list(each) for each in ranks_samplers]
    assert {each.steps_left for each in ranks_samplers} == {length // batch}
    for rank, own in enumerate(consumed):
        assert all(1 <= len(each) <= ranks[rank].most for each in own)
        if meeting is SyncPoint.MICRO_BATCH:
            assert len(own) == len(consumed[0])
    used = [sample for own in consumed for each in own for sample in each]
    assert len(used) == len(set(used)) == length // batch * batch


def test_new_shares_take_effect_at_the_next_step_without_losing_samples():
    """Also if workers have already prefetched batches for the old shares."""
    length = 200
    ranks = samplers(length, MIXED, "deal", seed=5)
    workers = {0: {}, 1: {"num_workers": 1, "prefetch_factor": 3}, 2: {}}
    loaders = [
        DataLoader(range(length), batch_sampler=each, **workers[each.rank]) for each in ranks
    ]
    used, sizes = Counter(), []
    for number, own in enumerate(
        zip(*(s.steps(at) for s, at in zip(ranks, loaders, strict=True)), strict=True)
    ):
        used.update(int(sample) for batches in own for batch in batches for sample in batch)
        sizes.append([sum(map(len, batches)) for batches in own])
        assert [tuple(map(len, batches)) for batches in own] == list(ranks[0].current)
        if number in (3, 7):
            for each in ranks:
                each.reallocate([[3, 2], [3, 2], [3, 2]] if number == 3 else [[8], [4], [3]])
    assert used == Counter(range(length))
    assert sizes[3:6] == [[9, 4, 2], [5, 5, 5], [5, 5, 5]]
    assert sizes[8] == [8, 4, 3]
    assert {each.epoch for each in ranks} == {1}


def test_position_counts_yielded_and_not_prefetched_steps():
    sampler = holdfast.HeterogeneousSampler(100, MIXED, rank=0)
    loader = DataLoader(range(100), batch_sampler=sampler, num_workers=1, prefetch_factor=4)
    next(iter(sampler.steps(loader)))
    assert sampler.state_dict()["taken"] == 15
    assert (sampler.step, sampler.steps_left, len(sampler)) == (1, 5, 10)


def test_epochs_and_seeds_differ_and_torchs_order_is_kept():
    one, other = (holdfast.HeterogeneousSampler(60, [[60]], rank=0, seed=seed) for seed in (0, 1))
    first = list(one)
    assert first[0] == torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    assert first != list(other)
    assert first == list(one)
    one.set_epoch(1)
    assert first != list(one)
    assert list(holdfast.HeterogeneousSampler(4, [[4]], rank=0, shuffle=False)) == [[0, 1, 2, 3]]


def test_setting_the_current_epoch_keeps_the_position():
    sampler = holdfast.HeterogeneousSampler(60, MIXED, rank=1)
    state = {"epoch": 2, "taken": 30, "seed": 0, "shuffle": True, "length": 60}
    sampler.load_state_dict(state)
    sampler.set_epoch(2)
    assert sampler.state_dict() == state
    sampler.set_epoch(3)
    assert sampler.state_dict() == state | {"epoch": 3, "taken": 0}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0},
        {"epoch": 0, "taken": 99, "seed": 0, "shuffle": True, "length": 60},
        {"epoch": "x", "taken": 0, "seed": 0, "shuffle": True, "length": 60},
        {"epoch": 0, "taken": 0, "seed": 0, "shuffle": True, "length": 61},
        {"epoch": 0, "taken": 0, "seed": 0, "shuffle": False, "length": 60},
    ],
)
def test_an_invalid_position_is_rejected_and_changes_nothing(state):
    sampler = holdfast.HeterogeneousSampler(60, MIXED, rank=0)
    before = sampler.state_dict()
    with pytest.raises(CheckpointMismatch, match="the position of HeterogeneousSampler"):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


@pytest.mark.parametrize(
    ("length", "shares", "options", "why"),
    [
        (10, MIXED, {}, "less than one batch of 15"),
        (5, [[1, 1], [1, 1]], {"last": "deal"}, "cannot be divided"),
        (60, MIXED, {"rank": 3}, "rank 3 has no share"),
        (60, MIXED, {"last": "pad"}, "neither 'drop' nor 'deal'"),
        (60, [[1], []], {}, "rank 1 has no micro-batch"),
    ],
)
def test_empty_or_deadlocking_shares_are_rejected(length, shares, options, why):
    with pytest.raises(InvalidValue, match=why):
        holdfast.HeterogeneousSampler(length, shares, **{"rank": 0} | options)


def test_a_loader_of_another_sampler_is_rejected():
    sampler = holdfast.HeterogeneousSampler(60, MIXED, rank=0)
    other = DataLoader(
        range(60), batch_sampler=BatchSampler(SequentialSampler(range(60)), 4, drop_last=False)
    )
    with pytest.raises(InvalidValue, match="does not yield this sampler"):
        next(iter(sampler.steps(other)))


def test_equal_shares_match_torchs_samples_in_another_rank_order():
    ranks = samplers(32, BatchShares(((4,), (4,))))
    assert [len(batch) for each in ranks for batch in each] == [4] * 8


@pytest.mark.filterwarnings("ignore:.*deprecated")  # emitted by torchdata
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("by_steps", [False, True])
@pytest.mark.parametrize("batches", [1, 4, 7])
def test_torchdatas_loader_resumes_with_the_next_sample(workers, by_steps, batches):
    """It saves states of sampler and iterator; a sampler state at the epoch's start would repeat all samples."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def fresh():
        sampler = holdfast.HeterogeneousSampler(100, MIXED, rank=0)
        return sampler, stateful.StatefulDataLoader(
            range(100), batch_sampler=sampler, collate_fn=list, num_workers=workers
        )

    def rest(sampler, loader):
        return itertools.chain.from_iterable(sampler.steps(loader)) if by_steps else iter(loader)

    sampler, loader = fresh()
    consumed = list(itertools.islice(rest(sampler, loader), batches))
    if by_steps and batches % 2:  # the loader is in the middle of a step
        consumed += rest_of_step(sampler, consumed)
    state = loader.state_dict()
    sampler, loader = fresh()
    loader.load_state_dict(state)
    consumed += list(rest(sampler, loader))
    assert consumed == list(holdfast.HeterogeneousSampler(100, MIXED, rank=0))


def rest_of_step(sampler, consumed):
    """Return the rest of the step, whose first batches are in ``consumed``."""
    all_batches = list(holdfast.HeterogeneousSampler(100, MIXED, rank=0))
    return all_batches[len(consumed) : 2 * sampler.step]
