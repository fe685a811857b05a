"""Shares of a dataset without padding: every sample is seen exactly once, by one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch.distributed as dist
from torch.utils.data import Sampler

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords


@suggest_keywords
class DistributedEvalSampler(Sampler[int]):
    """Gives rank r the samples r, r + n, r + 2n, … in order; some ranks get one more than others.

    torch's own ``DistributedSampler`` gives ranks equally many: it repeats samples, or drops some
    (``drop_last``), so that its mean is not the mean over the dataset. ``num_replicas`` and
    ``rank`` default to those of the default group, or 1 and 0 without one.

    Raises:
        InvalidValue: ``rank`` is out of range.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None
    ) -> None:
        has_group = dist.is_available() and dist.is_initialized()
        default_replicas, default_rank = 1, 0
        if has_group:
            default_replicas, default_rank = dist.get_world_size(), dist.get_rank()
        self.dataset = dataset
        self.num_replicas = default_replicas if num_replicas is None else num_replicas
        self.rank = default_rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            why = f"rank {self.rank} is out of range for num_replicas={self.num_replicas}"
            raise InvalidValue("DistributedEvalSampler", why=why)

    def _indices(self) -> range:
        return range(self.rank, len(self.dataset), self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices())

    def __len__(self) -> int:
        return len(self._indices())
