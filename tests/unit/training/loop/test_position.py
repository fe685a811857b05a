"""Data position: each sample is used once, after any interruption and on any number of ranks."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from holdfast.core.errors import InvalidValue
from holdfast.training.loop import data_position as positions
from holdfast.training.loop.data_position import (
    OrderPosition,
    ReplayPosition,
    SamplerPosition,
    StatefulPosition,
)


class Numbers(Dataset):
    """Sample i is i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def loaders(
    samples,
    ranks,
    batch,
    *,
    shuffle=True,
    drop_last=False,
    even_by_drop=False,
    workers=0,
    **options,
):
    """Return the loaders of all ranks, as a training script creates them."""
    data = Numbers(samples)
    return [
        DataLoader(
            data,
            batch,
            num_workers=workers,
            drop_last=drop_last,
            **options,
            sampler=DistributedSampler(
                data, ranks, rank, shuffle=shuffle, seed=3, drop_last=even_by_drop
            ),
        )
        for rank in range(ranks)
    ]


def take(position, most=None):
    """Use up to ``most`` batches of the epoch; return them as lists of samples."""
    found = []
    for batch in position.batches():
        found.append(batch.tolist())
        position.advance()
        if most is not None and len(found) == most:
            break
    return found


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def of_all(loaders_of_ranks):
    return [positions.position_of(loader, len(loaders_of_ranks)) for loader in loaders_of_ranks]


# Order equals torch's


@pytest.mark.parametrize("samples", [1, 2, 7, 24, 25, 31])
@pytest.mark.parametrize(("ranks", "batch"), [(1, 4), (2, 3), (3, 2), (4, 1)])
@pytest.mark.parametrize(
    ("drop_last", "even_by_drop"), list(itertools.product([False, True], repeat=2))
)
def test_batches_equal_those_of_torch_without_holdfast(
    samples, ranks, batch, drop_last, even_by_drop
):
    if even_by_drop and samples < ranks:
        pytest.skip("torch itself fails on less samples than ranks")
    options = {"drop_last": drop_last, "even_by_drop": even_by_drop}
    for plain, own in zip(
        loaders(samples, ranks, batch, **options),
        loaders(samples, ranks, batch, **options),
        strict=True,
    ):
        position = positions.position_of(own, ranks)
        for epoch in range(3):
            plain.sampler.set_epoch(epoch)
            expected = [batch.tolist() for batch in plain]
            assert len(own) == len(expected)
            assert take(position) == expected
            position.next_epoch()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_without_shuffle_is_in_order(workers):
    position = positions.position_of(DataLoader(Numbers(7), 3, num_workers=workers), 1)
    assert take(position) == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_loader_without_batches_counts_samples():
    position = positions.position_of(DataLoader(Numbers(5), batch_size=None, shuffle=True), 1)
    first = list(itertools.islice(position.batches(), 2))
    position.advance()
    position.advance()
    again = positions.position_of(DataLoader(Numbers(5), batch_size=None, shuffle=True), 1)
    again.restore(position.state())
    assert sorted(first + list(again.batches())) == [0, 1, 2, 3, 4]


# Interrupted and resumed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop_after", [0, 1, 3, 5])
def test_a_resume_continues_with_the_same_batches(workers, stop_after):
    undisturbed = take(of_all(loaders(30, 2, 2, workers=workers))[1])
    before = of_all(loaders(30, 2, 2, workers=workers))[1]
    first = take(before, stop_after) if stop_after else []
    after = of_all(loaders(30, 2, 2, workers=workers))[1]
    assert after.restore(before.state()) == ""
    assert first + take(after) == undisturbed


def test_batches_that_workers_prefetched_are_not_counted():
    before = of_all(loaders(40, 1, 2, workers=2, prefetch_factor=4))[0]
    batches = before.batches()
    first = [next(batches).tolist() for _ in range(3)]
    for _ in range(2):
        before.advance()  # the third is in use: its step has not ended
    after = of_all(loaders(40, 1, 2, workers=2, prefetch_factor=4))[0]
    after.restore(before.state())
    assert take(after)[0] == first[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_has_its_own_order_also_with_persistent_workers(persistent):
    position = of_all(loaders(20, 1, 4, workers=1, persistent_workers=persistent))[0]
    seen = []
    for _ in range(3):
        seen.append(flat(take(position)))
        position.next_epoch()
    assert all(sorted(each) == list(range(20)) for each in seen)
    assert seen[0] != seen[1] != seen[2]


# Resume on another number of ranks


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 1), (1, 3), (4, 3)])
@pytest.mark.parametrize("steps", [1, 3])
def test_with_other_ranks_no_sample_is_repeated_or_skipped(before, after, steps, shuffle):
    samples, batch = 60, 3
    first = of_all(loaders(samples, before, batch, shuffle=shuffle))
    used = [sample for position in first for batch in take(position, steps) for sample in batch]
    second = of_all(loaders(samples, after, batch, shuffle=shuffle))
    for position in second:
        assert position.restore(first[0].state()) == ""
    rest = [sample for position in second for batch in take(position) for sample in batch]
    assert len(used) == len(set(used)) == before * batch * steps
    assert set(used) | set(rest) == set(range(samples))
    padding = (
        -len(set(range(samples)) - set(used)) % after
    )  # torch pads, so that ranks have equal numbers
    assert len(used) + len(rest) == samples + padding


def test_uneven_ends_with_other_ranks_lose_no_more_than_torch_does():
    first = of_all(loaders(61, 4, 3, even_by_drop=True))
    used = [sample for position in first for batch in take(position, 2) for sample in batch]
    second = of_all(loaders(61, 3, 3, even_by_drop=True))
    for position in second:
        position.restore(first[1].state())
    rest = [sample for position in second for batch in take(position) for sample in batch]
    assert len(used + rest) == len(set(used + rest)) == 60  # 37 remain for 3 ranks


def test_the_next_epoch_is_complete_for_the_other_ranks():
    first = of_all(loaders(24, 4, 2))
    for position in first:
        take(position, 1)
    second = of_all(loaders(24, 2, 2))
    seen = []
    for position in second:
        position.restore(first[0].state())
        take(position)
        position.next_epoch()
        seen += flat(take(position))
    assert sorted(seen) == list(range(24))


# Positions that cannot be resumed are reported


def test_another_dataset_restarts_the_epoch_with_a_reason():
    before = positions.position_of(DataLoader(Numbers(10), 2), 1)
    take(before, 2)
    after = positions.position_of(DataLoader(Numbers(12), 2), 1)
    assert after.restore(before.state()) == "the dataset had 10 samples, and has 12 now"
    assert flat(take(after)) == list(range(12))


def test_a_custom_sampler_does_not_fit_other_ranks():
    before = positions.position_of(DataLoader(Numbers(10), 2, sampler=Backwards(10)), 2)
    take(before, 2)
    after = positions.position_of(DataLoader(Numbers(10), 2, sampler=Backwards(10)), 4)
    assert "2 ranks saved them, and there are 4 now" in after.restore(before.state())


def test_an_iterator_is_rejected():
    with pytest.raises(InvalidValue, match="consumed only once"):
        positions.position_of(iter([1, 2]), 1)


# Custom samplers


class Backwards(Sampler):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length - 1, -1, -1))


class Buckets(Sampler):
    """Draws one batch at a time with Python's and torch's global generators, in a new order each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for _ in range(5):
            yield [random.randrange(1000), int(torch.randint(1000, ())), self.epoch]


def custom_loader(kind, workers):
    data = Numbers(1000)
    if kind == "buckets":
        return DataLoader(data, batch_sampler=Buckets(), num_workers=workers)
    if kind == "weighted":
        return DataLoader(
            data, 2, sampler=WeightedRandomSampler(torch.ones(1000), 10), num_workers=workers
        )
    if kind == "replaced":
        return DataLoader(
            data,
            2,
            sampler=RandomSampler(data, replacement=True, num_samples=10),
            num_workers=workers,
        )
    return DataLoader(
        data, batch_sampler=BatchSampler(Backwards(10), 2, drop_last=False), num_workers=workers
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["buckets", "weighted", "replaced", "backwards"])
def test_a_custom_sampler_is_replayed(kind, workers):
    torch.manual_seed(1)
    undisturbed = positions.position_of(custom_loader(kind, workers), 1)
    assert isinstance(undisturbed, SamplerPosition)
    take(undisturbed)
    undisturbed.next_epoch()
    expected = take(undisturbed)

    torch.manual_seed(1)
    before = positions.position_of(custom_loader(kind, workers), 1)
    take(before)
    before.next_epoch()
    first = []
    for batch in before.batches():
        first.append(batch.tolist())
        before.advance()
        torch.rand(5), random.random()  # the model also draws random numbers
        if len(first) == 2:
            break
    torch.manual_seed(99)
    after = positions.position_of(custom_loader(kind, workers), 1)
    assert after.restore(before.state()) == ""
    assert first + take(after) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["order", "weighted"])
def test_a_loader_does_not_draw_from_the_models_generators(kind, workers):
    loader = (
        custom_loader(kind, workers)
        if kind == "weighted"
        else loaders(10, 1, 2, workers=workers)[0]
    )
    position = positions.position_of(loader, 1)
    torch.manual_seed(5)
    random.seed(5)
    take(position)
    drawn = torch.rand(3).tolist(), random.random()
    torch.manual_seed(5)
    random.seed(5)
    assert drawn == (torch.rand(3).tolist(), random.random())


# Iterable datasets


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from range(first, self.length, step)


class StatefulStream(Stream):
    """A stream that saves and restores its position."""

    at = 0
    loads = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            self.loads += 1
            yield self.at - 1
        self.at = 0


def test_a_stateful_stream_resumes_from_its_state():
    before = positions.position_of(DataLoader(StatefulStream(10), 2), 1)
    assert isinstance(before, StatefulPosition)
    first = take(before, 2)
    data = StatefulStream(10)
    after = positions.position_of(DataLoader(data, 2), 1)
    assert after.restore(before.state()) == ""
    assert first + take(after) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert data.loads == 6
    after.next_epoch()
    assert len(take(after)) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateless_stream_is_replayed(workers, caplog):
    undisturbed = take(positions.position_of(DataLoader(Stream(20), 2, num_workers=workers), 1))
    before = positions.position_of(DataLoader(Stream(20), 2, num_workers=workers), 1)
    assert isinstance(before, ReplayPosition)
    first = take(before, 3)
    after = positions.position_of(DataLoader(Stream(20), 2, num_workers=workers), 1)
    after.restore(before.state())
    assert first + take(after) == undisturbed
    assert "loading and discarding 3 batches of epoch 0" in caplog.text


def test_a_list_of_batches_works():
    batches = [torch.tensor([n]) for n in range(4)]
    before = positions.position_of(batches, 1)
    take(before, 1)
    after = positions.position_of(batches, 1)
    after.restore(before.state())
    assert take(after) == [[1], [2], [3]]


#: torchdata 0.11 calls functions that torch 2.13 deprecates.
old_calls = pytest.mark.filterwarnings(
    "ignore:.*deprecated:UserWarning", "ignore:.*deprecated:FutureWarning"
)


@old_calls
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [StatefulStream, Stream])
def test_torchdatas_stateful_loader_resumes_without_prefetched_batches(workers, data):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

    def make():
        return stateful.StatefulDataLoader(data(20), 2, num_workers=workers)

    undisturbed = take(positions.position_of(make(), 1))
    before = positions.position_of(make(), 1)
    assert isinstance(before, StatefulPosition)
    first = take(before, 3)
    after = positions.position_of(make(), 1)
    assert after.restore(before.state()) == ""
    assert first + take(after) == undisturbed


@old_calls
def test_a_stateful_loader_with_torchs_samplers_fits_any_number_of_ranks():
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    data = Numbers(24)

    def make(ranks):
        samplers = [DistributedSampler(data, ranks, rank) for rank in range(ranks)]
        return [
            positions.position_of(stateful.StatefulDataLoader(data, 2, sampler=each), ranks)
            for each in samplers
        ]

    before = make(4)
    used = [sample for position in before for batch in take(position, 2) for sample in batch]
    after = make(2)
    for position in after:
        assert isinstance(position, OrderPosition)
        position.restore(before[0].state())
    rest = [sample for position in after for batch in take(position) for sample in batch]
    assert sorted(used + rest) == list(range(24))


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_prepared_by_accelerate_resumes(workers, seedable):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    options = accelerate.DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=options)

    def make():
        torch.manual_seed(0)
        return positions.position_of(
            accelerator.prepare(DataLoader(torch.arange(20), 4, shuffle=True, num_workers=workers)),
            1,
        )

    undisturbed = make()
    epochs = [take(undisturbed), undisturbed.next_epoch() or take(undisturbed)]
    before = make()
    take(before)
    before.next_epoch()
    first = take(before, 2)
    after = make()
    assert after.restore(before.state()) == ""
    assert first + take(after) == epochs[1] != epochs[0]
    assert sorted(flat(epochs[1])) == list(range(20))
