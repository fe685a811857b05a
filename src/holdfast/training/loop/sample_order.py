"""The order of all samples in an epoch, and each rank's share of the rest of it.

The order depends only on seed and epoch, and equals that of torch's ``DistributedSampler``: rank r
of n takes every n-th sample. After any number of batches the consumed samples are therefore a
prefix of the order, and its length is the whole position. Any other number of ranks can share the
rest in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

_CHUNK = 1 << 16  # indices converted to Python ints at a time


@dataclass
class SampleOrder:
    """How ``length`` samples are divided among ``replicas``, in batches of ``batch_size``.

    ``batch_size`` is None if the loader makes no batches: then one sample is one. ``even`` says how
    ranks get equally many samples: the rest is dropped (``drop``), or samples from the beginning
    are repeated (``pad``).
    """

    length: int
    seed: int
    shuffle: bool
    replicas: int
    rank: int
    even: str
    batch_size: int | None
    drop_last: bool

    def indices(self, epoch: int) -> torch.Tensor:
        """Return all indices in the epoch's order, int64, shape (length,)."""
        if not self.shuffle:
            return torch.arange(self.length)
        return torch.randperm(
            self.length, generator=torch.Generator().manual_seed(self.seed + epoch)
        )

    def rank_indices(self, epoch: int, taken: int) -> torch.Tensor:
        """Return this rank's indices after the first ``taken`` of the epoch's order."""
        order = self.indices(epoch)
        remaining = order[taken:]
        remainder = len(remaining) % self.replicas
        if remainder and self.even == "drop":
            remaining = remaining[: len(remaining) - remainder]
        elif remainder:
            missing = self.replicas - remainder
            remaining = torch.cat([remaining, order.repeat(-(-missing // len(order)))[:missing]])
        return remaining[self.rank :: self.replicas]

    def batches(self, epoch: int, taken: int) -> Iterator[Any]:
        """Yield lists of ``batch_size`` indices, or single ones without batches."""
        own_indices = self.rank_indices(epoch, taken)
        if self.batch_size is None:
            for begin in range(0, len(own_indices), _CHUNK):
                yield from own_indices[begin : begin + _CHUNK].tolist()
            return
        end = (
            len(own_indices) - len(own_indices) % self.batch_size
            if self.drop_last
            else len(own_indices)
        )
        for begin in range(0, end, self.batch_size):
            yield own_indices[begin : min(begin + self.batch_size, end)].tolist()

    def batch_count(self, taken: int) -> int:
        """Return the number of batches that :meth:`batches` yields."""
        left = max(0, self.length - taken)
        own_indices = left // self.replicas if self.even == "drop" else -(-left // self.replicas)
        if self.batch_size is None:
            return own_indices
        return (
            own_indices // self.batch_size if self.drop_last else -(-own_indices // self.batch_size)
        )

    @property
    def global_batch(self) -> int:
        """Return the samples per step over all ranks."""
        return self.replicas * (self.batch_size or 1)


def order_of(loader: Any) -> SampleOrder | None:
    """Return the order of a DataLoader; None if its samplers are not torch's own."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches: Any = loader.batch_sampler
    if batches is not None and not _is_exactly(batches, BatchSampler):
        return None
    sampler: Any = loader.sampler if batches is None else batches.sampler
    known = _sampler_fields(sampler, loader)
    if known is None:
        return None
    if batches is None:
        return SampleOrder(batch_size=None, drop_last=False, **known)
    return SampleOrder(batch_size=batches.batch_size, drop_last=batches.drop_last, **known)


def _sampler_fields(sampler: Any, loader: DataLoader[Any]) -> dict[str, Any] | None:
    dataset: Any = loader.dataset
    if _is_exactly(sampler, DistributedSampler):
        return {
            "length": len(sampler.dataset),
            "seed": sampler.seed,
            "shuffle": sampler.shuffle,
            "replicas": sampler.num_replicas,
            "rank": sampler.rank,
            "even": "drop" if sampler.drop_last else "pad",
        }
    is_random = (
        _is_exactly(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(dataset)
    )
    if not is_random and not _is_exactly(sampler, SequentialSampler):
        return None
    generator = getattr(sampler, "generator", None) or loader.generator
    seed = generator.initial_seed() if generator is not None else torch.initial_seed()
    return {
        "length": len(dataset),
        "seed": seed & ((1 << 62) - 1),
        "shuffle": is_random,
        "replicas": 1,
        "rank": 0,
        "even": "drop",
    }


def _is_exactly(candidate: Any, expected: type) -> bool:
    """Return whether it is torch's own class, or torchdata's stateful copy, but not a subclass."""
    actual = type(candidate)
    copied = (
        actual.__module__.startswith("torchdata.")
        and actual.__name__.removeprefix("Stateful") == expected.__name__
    )
    return actual is expected or copied
