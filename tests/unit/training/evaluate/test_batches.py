"""Shares without padding, smaller batches, and the expected number of samples."""

from __future__ import annotations

import itertools
import logging
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from holdfast.core.errors import InvalidValue
from holdfast.training.evaluate import DistributedEvalSampler
from holdfast.training.evaluate.batch_sources import BatchSource, count_samples, split_samples


@given(st.integers(0, 60), st.integers(1, 9))
def test_every_sample_is_seen_exactly_once(size: int, ranks: int) -> None:
    samplers = [DistributedEvalSampler(range(size), ranks, rank) for rank in range(ranks)]
    shares = [list(sampler) for sampler in samplers]
    assert sorted(itertools.chain(*shares)) == list(range(size))
    assert [len(sampler) for sampler in samplers] == [len(share) for share in shares]


def test_rank_out_of_range() -> None:
    with pytest.raises(InvalidValue, match="rank 2 is out of range"):
        DistributedEvalSampler(range(3), 2, 2)


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[str]


@given(st.integers(1, 40), st.integers(1, 40))
def test_parts_add_up_to_the_batch(size: int, max_samples: int) -> None:
    batch = {
        "x": torch.arange(size),
        "pair": Pair(torch.arange(size) * 2, ["s"] * size),
        "scale": torch.tensor(3.0),
    }
    parts = list(split_samples(batch, size, max_samples))
    assert torch.cat([part["x"] for part in parts]).tolist() == list(range(size))
    assert torch.cat([part["pair"].x for part in parts]).tolist() == list(range(0, 2 * size, 2))
    assert list(itertools.chain(*(part["pair"].y for part in parts))) == ["s"] * size
    assert all(part["scale"] == 3.0 and count_samples(part) <= max_samples for part in parts)


def numbers(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def create_loader(size: int):
    return DataLoader(numbers(11), size)


class Unsized(IterableDataset):
    def __iter__(self):
        yield from torch.arange(11)


@pytest.mark.parametrize(
    ("loader", "sizes"),
    [
        (DataLoader(numbers(11), 4), {0: [4, 4, 3], 1: [2, 2, 2, 2, 2, 1], 5: [1] * 11}),
        (DataLoader(numbers(11), 4, drop_last=True), {0: [4, 4], 1: [2] * 4, 2: [1] * 8}),
        (DataLoader(Unsized(), 4), {0: [4, 4, 3], 1: [2, 2, 2, 2, 2, 1]}),
        ([torch.arange(4), torch.arange(3)], {0: [4, 3], 1: [2, 2, 2, 1], 2: [1] * 7}),
        (create_loader, {0: [8, 3], 2: [2, 2, 2, 2, 2, 1]}),
    ],
)
def test_batches_are_halved_and_return_to_full_size(loader, sizes) -> None:
    source = BatchSource("a", loader, 8, count_samples)
    for halvings, expected in [*sizes.items(), (0, sizes[0])]:
        batches = source.create_loader(halvings)
        length = (
            source.count_batches(batches, halvings)
            if not isinstance(loader, DataLoader)
            else len(expected)
        )
        assert [count_samples(batch) for batch in batches] == expected
        assert length >= len(expected)


def test_expected_samples(caplog: pytest.LogCaptureFixture) -> None:
    data = numbers(11)
    own = BatchSource(
        "a", DataLoader(data, 4, sampler=DistributedEvalSampler(data, 2, 1)), None, count_samples
    )
    assert (own.expected, own.whole) == (5, 11)
    assert BatchSource("b", [torch.arange(4), torch.arange(3)], None, count_samples).expected == 7
    assert BatchSource("c", DataLoader(Unsized(), 4), None, count_samples).expected is None
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        padded = BatchSource(
            "d", DataLoader(data, 4, sampler=DistributedSampler(data, 2, 0)), None, count_samples
        )
    assert (padded.expected, padded.whole) == (6, 11)
    assert "repeats 1 sample " in caplog.text


def test_unknown_batch_sizes_and_lengths_are_rejected() -> None:
    with pytest.raises(InvalidValue, match="function of the batch size"):
        BatchSource("a", create_loader, None, count_samples)
    with pytest.raises(InvalidValue, match="number of samples in a int"):
        count_samples(3)
    with pytest.raises(InvalidValue, match="number of batches in advance"):
        BatchSource("a", (each for each in ()), None, count_samples).count_batches(
            (each for each in ()), 0
        )
    assert (
        count_samples({"text": ["a", "b"]}),
        count_samples((["a", "b", "c"], 1)),
        count_samples(torch.tensor(1.0)),
    ) == (2, 3, 1)
