"""The sampler: every sample once, equal steps on every rank, unchanged by interruptions."""

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


def made(length, shares, last, **options):
    """One for each rank; none where holdfast refuses such data."""
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
def test_every_sample_once_and_as_many_steps_on_every_rank(shares, length, last, epoch, shuffle):
    ranks = made(length, shares, last, shuffle=shuffle)
    if ranks is None:
        assert last == "deal" or length < shares.batch
        return
    for each in ranks:
        each.set_epoch(epoch)
    had = [list(each) for each in ranks]
    assert [len(each) for each in ranks] == list(map(len, had))
    assert len({each.steps_left for each in ranks}) == 1
    if shares.sync_point is SyncPoint.MICRO_BATCH:
        assert len({len(each) for each in had}) == 1
    seen = Counter(itertools.chain.from_iterable(itertools.chain.from_iterable(had)))
    assert set(seen.values()) == {1}
    assert len(seen) == (length if last == "deal" else length - length % shares.batch)
    assert all(had[rank] for rank in range(shares.world))
    assert all(
        batch and len(batch) <= max(shares.sizes[rank])
        for rank in range(shares.world)
        for batch in had[rank]
    )


@settings(max_examples=examples(150))
@given(
    any_shares(),
    any_shares(),
    st.integers(1, 150),
    st.integers(0, 8),
    st.sampled_from(["drop", "deal"]),
)
def test_other_ranks_with_other_shares_resume_a_stopped_job(shares, others, length, steps, last):
    """No sample twice, and none left out but at the end, if at all."""
    ranks = made(length, shares, last, seed=3)
    if ranks is None:
        return
    seen, state = Counter(), None
    loaders = [DataLoader(range(length), batch_sampler=each, collate_fn=list) for each in ranks]
    for given_ in itertools.islice(
        zip(*(s.steps(at) for s, at in zip(ranks, loaders, strict=True)), strict=True), steps
    ):
        seen.update(sample for mine in given_ for batch in mine for sample in batch)
        state = ranks[0].state_dict()
        assert all(each.state_dict() == state for each in ranks)
    state = state or ranks[0].state_dict()
    resumed = made(length, others, last, seed=99)
    try:
        for each in resumed or ():
            each.load_state_dict(state)
    except InvalidValue:
        assert last == "deal"
        return
    for each in resumed or ():
        seen.update(itertools.chain.from_iterable(each))
    assert not seen or set(seen.values()) == {1}
    if resumed:
        left = (length - state["taken"]) % others.batch if last == "drop" else 0
        assert sum(seen.values()) == length - left


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
def test_from_any_speeds_to_shares_of_any_data(found, batch, length, meeting):
    """Measured speeds, the allotment, and what ranks get by it: exact, within memory, and in lockstep."""
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
        given_ = [
            holdfast.HeterogeneousSampler(length, allotment, rank=rank)
            for rank in range(len(ranks))
        ]
    except InvalidValue:
        return
    had = [list(each) for each in given_]
    assert {each.steps_left for each in given_} == {length // batch}
    for rank, mine in enumerate(had):
        assert all(1 <= len(each) <= ranks[rank].most for each in mine)
        if meeting is SyncPoint.MICRO_BATCH:
            assert len(mine) == len(had[0])
    seen = [sample for mine in had for each in mine for sample in each]
    assert len(seen) == len(set(seen)) == length // batch * batch


def test_new_shares_take_effect_at_the_next_step_and_nothing_is_lost():
    """Also where workers have fetched batches for the old shares already."""
    length = 200
    ranks = samplers(length, MIXED, "deal", seed=5)
    workers = {0: {}, 1: {"num_workers": 1, "prefetch_factor": 3}, 2: {}}
    loaders = [
        DataLoader(range(length), batch_sampler=each, **workers[each.rank]) for each in ranks
    ]
    seen, sizes = Counter(), []
    for number, mine in enumerate(
        zip(*(s.steps(at) for s, at in zip(ranks, loaders, strict=True)), strict=True)
    ):
        seen.update(int(sample) for batches in mine for batch in batches for sample in batch)
        sizes.append([sum(map(len, batches)) for batches in mine])
        assert [tuple(map(len, batches)) for batches in mine] == list(ranks[0].current)
        if number in (3, 7):
            for each in ranks:
                each.reallocate([[3, 2], [3, 2], [3, 2]] if number == 3 else [[8], [4], [3]])
    assert seen == Counter(range(length))
    assert sizes[3:6] == [[9, 4, 2], [5, 5, 5], [5, 5, 5]]
    assert sizes[8] == [8, 4, 3]
    assert {each.epoch for each in ranks} == {1}


def test_the_position_is_that_of_yielded_steps_not_of_prefetching():
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


@pytest.mark.filterwarnings("ignore:.*deprecated")  # torchdata's own
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("by_steps", [False, True])
@pytest.mark.parametrize("batches", [1, 4, 7])
def test_torchdatas_loader_resumes_with_the_next_sample(workers, by_steps, batches):
    """It asks sampler and iterator; a sampler that told it the beginning of the epoch would have it all again."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def fresh():
        sampler = holdfast.HeterogeneousSampler(100, MIXED, rank=0)
        return sampler, stateful.StatefulDataLoader(
            range(100), batch_sampler=sampler, collate_fn=list, num_workers=workers
        )

    def rest(sampler, loader):
        return itertools.chain.from_iterable(sampler.steps(loader)) if by_steps else iter(loader)

    sampler, loader = fresh()
    had = list(itertools.islice(rest(sampler, loader), batches))
    if by_steps and batches % 2:  # a step is in hand as a whole
        had += had_not(sampler, had)
    state = loader.state_dict()
    sampler, loader = fresh()
    loader.load_state_dict(state)
    had += list(rest(sampler, loader))
    assert had == list(holdfast.HeterogeneousSampler(100, MIXED, rank=0))


def had_not(sampler, had):
    """The rest of the step, which was given with what was had of it."""
    whole = list(holdfast.HeterogeneousSampler(100, MIXED, rank=0))
    return whole[len(had) : 2 * sampler.step]
