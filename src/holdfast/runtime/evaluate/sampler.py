"""Shares of a dataset without padding: every sample is seen exactly once, by one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch.distributed as dist
from torch.utils.data import Sampler

from holdfast.errors import BadValue


class DistributedEvalSampler(Sampler[int]):
    """Gives rank r the samples r, r + n, r + 2n, … in order; some ranks get one sample more than others.

    torch's own ``DistributedSampler`` makes ranks even: it repeats samples, or leaves some out (``drop_last``), and a
    mean over it is not the mean over the dataset. ``num_replicas`` and ``rank`` are those of the default group, or 1
    and 0 where there is none.

    Raises:
        BadValue: there is no such rank.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None) -> None:
        here = dist.is_available() and dist.is_initialized()
        self.dataset = dataset
        self.num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if here else 1
        self.rank = rank if rank is not None else dist.get_rank() if here else 0
        if not 0 <= self.rank < self.num_replicas:
            raise BadValue("DistributedEvalSampler", why=f"there is no rank {self.rank} of {self.num_replicas}")

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, len(self.dataset), self.num_replicas))

    def __len__(self) -> int:
        return len(range(self.rank, len(self.dataset), self.num_replicas))
