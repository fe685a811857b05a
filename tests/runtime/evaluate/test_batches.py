"""Shares without padding, smaller batches, and how many samples a loader brings."""

from __future__ import annotations

import itertools
import logging
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from holdfast.errors import BadValue
from holdfast.runtime.evaluate import DistributedEvalSampler
from holdfast.runtime.evaluate.batches import Source, cut, size_of


@given(st.integers(0, 60), st.integers(1, 9))
def test_every_sample_is_seen_exactly_once(size: int, ranks: int) -> None:
    samplers = [DistributedEvalSampler(range(size), ranks, rank) for rank in range(ranks)]
    shares = [list(sampler) for sampler in samplers]
    assert sorted(itertools.chain(*shares)) == list(range(size))
    assert [len(sampler) for sampler in samplers] == [len(share) for share in shares]


def test_there_is_no_such_rank() -> None:
    with pytest.raises(BadValue, match="no rank 2 of 2"):
        DistributedEvalSampler(range(3), 2, 2)


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[str]


@given(st.integers(1, 40), st.integers(1, 40))
def test_pieces_are_the_batch(size: int, piece: int) -> None:
    batch = {"x": torch.arange(size), "pair": Pair(torch.arange(size) * 2, ["s"] * size), "scale": torch.tensor(3.0)}
    pieces = list(cut(batch, size, piece))
    assert torch.cat([part["x"] for part in pieces]).tolist() == list(range(size))
    assert torch.cat([part["pair"].x for part in pieces]).tolist() == list(range(0, 2 * size, 2))
    assert list(itertools.chain(*(part["pair"].y for part in pieces))) == ["s"] * size
    assert all(part["scale"] == 3.0 and size_of(part) <= piece for part in pieces)


def numbers(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def fabricate(size: int):
    return DataLoader(numbers(11), size)


class Endless(IterableDataset):
    def __iter__(self):
        yield from torch.arange(11)


@pytest.mark.parametrize(
    ("loader", "sizes"),
    [
        (DataLoader(numbers(11), 4), {0: [4, 4, 3], 1: [2, 2, 2, 2, 2, 1], 5: [1] * 11}),
        (DataLoader(numbers(11), 4, drop_last=True), {0: [4, 4], 1: [2] * 4, 2: [1] * 8}),
        (DataLoader(Endless(), 4), {0: [4, 4, 3], 1: [2, 2, 2, 2, 2, 1]}),
        ([torch.arange(4), torch.arange(3)], {0: [4, 3], 1: [2, 2, 2, 1], 2: [1] * 7}),
        (fabricate, {0: [8, 3], 2: [2, 2, 2, 2, 2, 1]}),
    ],
)
def test_batches_are_halved_and_their_size_comes_back(loader, sizes) -> None:
    source = Source("a", loader, 8, size_of)
    for halvings, expected in [*sizes.items(), (0, sizes[0])]:
        batches = source.loader(halvings)
        length = source.length(batches, halvings) if not isinstance(loader, DataLoader) else len(expected)
        assert [size_of(batch) for batch in batches] == expected
        assert length >= len(expected)


def test_how_many_samples_are_expected(caplog: pytest.LogCaptureFixture) -> None:
    data = numbers(11)
    own = Source("a", DataLoader(data, 4, sampler=DistributedEvalSampler(data, 2, 1)), None, size_of)
    assert (own.expected, own.whole) == (5, 11)
    assert Source("b", [torch.arange(4), torch.arange(3)], None, size_of).expected == 7
    assert Source("c", DataLoader(Endless(), 4), None, size_of).expected is None
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        padded = Source("d", DataLoader(data, 4, sampler=DistributedSampler(data, 2, 0)), None, size_of)
    assert (padded.expected, padded.whole) == (6, 11)
    assert "repeats 1 samples" in caplog.text


def test_a_function_needs_the_batch_size_and_a_batch_a_length() -> None:
    with pytest.raises(BadValue, match="function of the batch size"):
        Source("a", fabricate, None, size_of)
    with pytest.raises(BadValue, match="how many samples are in a int"):
        size_of(3)
    with pytest.raises(BadValue, match="how many batches"):
        Source("a", (each for each in ()), None, size_of).length((each for each in ()), 0)
    assert (size_of({"text": ["a", "b"]}), size_of((["a", "b", "c"], 1)), size_of(torch.tensor(1.0))) == (2, 3, 1)
