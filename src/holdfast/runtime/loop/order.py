"""The order of all samples in an epoch, and each rank's share of what is left of it.

The order depends on seed and epoch alone, and is that of torch's ``DistributedSampler``: rank r of n takes every n-th
sample of it. After any number of batches what was taken is therefore the beginning of the order, whoever took it, and
how many samples it has is the whole position. Other ranks, more or fewer, share the rest in the same way.
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

_CHUNK = 1 << 16  # indices that become Python's numbers at a time


@dataclass
class Order:
    """How the samples of a data set are dealt out: ``length`` samples, over ``replicas``, ``batch_size`` to each.

    ``batch_size`` is None where the loader makes no batches, so that one is one sample. ``even`` says how ranks get as
    many samples each: the rest is left out (``drop``), or samples from the beginning come again (``pad``).
    """

    length: int
    seed: int
    shuffle: bool
    replicas: int
    rank: int
    even: str
    batch_size: int | None
    drop_last: bool

    def whole(self, epoch: int) -> torch.Tensor:
        """All indices in the order of the epoch, int64, shape (length,)."""
        if not self.shuffle:
            return torch.arange(self.length)
        return torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + epoch))

    def share(self, epoch: int, taken: int) -> torch.Tensor:
        """This rank's indices when the first ``taken`` of the epoch's order were used already."""
        order = self.whole(epoch)
        rest = order[taken:]
        odd = len(rest) % self.replicas
        if odd and self.even == "drop":
            rest = rest[: len(rest) - odd]
        elif odd:
            missing = self.replicas - odd
            rest = torch.cat([rest, order.repeat(-(-missing // len(order)))[:missing]])
        return rest[self.rank :: self.replicas]

    def batches(self, epoch: int, taken: int) -> Iterator[Any]:
        """Lists of ``batch_size`` indices, or single ones where there are no batches."""
        mine = self.share(epoch, taken)
        if self.batch_size is None:
            for begin in range(0, len(mine), _CHUNK):
                yield from mine[begin : begin + _CHUNK].tolist()
            return
        end = len(mine) - len(mine) % self.batch_size if self.drop_last else len(mine)
        for begin in range(0, end, self.batch_size):
            yield mine[begin : min(begin + self.batch_size, end)].tolist()

    def count(self, taken: int) -> int:
        """How many batches :meth:`batches` gives."""
        left = max(0, self.length - taken)
        mine = left // self.replicas if self.even == "drop" else -(-left // self.replicas)
        if self.batch_size is None:
            return mine
        return mine // self.batch_size if self.drop_last else -(-mine // self.batch_size)

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take in a step."""
        return self.replicas * (self.batch_size or 1)


def of(loader: Any) -> Order | None:
    """The order in which a DataLoader goes through its data; None where its samplers are not torch's plain ones."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches: Any = loader.batch_sampler
    if batches is not None and not _is(batches, BatchSampler):
        return None
    sampler: Any = loader.sampler if batches is None else batches.sampler
    known = _sampled(sampler, loader)
    if known is None:
        return None
    if batches is None:
        return Order(batch_size=None, drop_last=False, **known)
    return Order(batch_size=batches.batch_size, drop_last=batches.drop_last, **known)


def _sampled(sampler: Any, loader: DataLoader[Any]) -> dict[str, Any] | None:
    data: Any = loader.dataset
    if _is(sampler, DistributedSampler):
        return {
            "length": len(sampler.dataset), "seed": sampler.seed, "shuffle": sampler.shuffle,
            "replicas": sampler.num_replicas, "rank": sampler.rank, "even": "drop" if sampler.drop_last else "pad",
        }  # fmt: skip
    plain = _is(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(data)
    if not plain and not _is(sampler, SequentialSampler):
        return None
    generator = getattr(sampler, "generator", None) or loader.generator
    seed = generator.initial_seed() if generator is not None else torch.initial_seed()
    return {
        "length": len(data), "seed": seed & ((1 << 62) - 1), "shuffle": plain,
        "replicas": 1, "rank": 0, "even": "drop",
    }  # fmt: skip


def _is(thing: Any, kind: type) -> bool:
    """Whether it is torch's own, or torchdata's copy of it that can tell its position; a subclass may do anything."""
    found = type(thing)
    copied = found.__module__.startswith("torchdata.") and found.__name__.removeprefix("Stateful") == kind.__name__
    return found is kind or copied
