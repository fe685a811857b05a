"""Batches of whole documents under a token budget, spread over the workers."""
import math
from typing import Iterator, List, Sequence

import torch
from torch.utils.data import Sampler


def first_fit(lengths: Sequence[int], order: Sequence[int], budget: int) -> List[List[int]]:
    bins: List[List[int]] = []
    room: List[int] = []
    for i in order:
        need = min(lengths[i], budget)
        for b, free in enumerate(room):
            if free >= need:
                bins[b].append(i)
                room[b] -= need
                break
        else:
            bins.append([i])
            room.append(budget - need)
    return bins


class PackedBatchSampler(Sampler):
    """Every replica sees the same number of packed batches.

    ``num_replicas`` and ``rank`` have the meaning they have for
    :class:`torch.utils.data.DistributedSampler`.
    """

    def __init__(self, lengths, budget, num_replicas, rank, seed=0):
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not in [0, {num_replicas})")
        self.lengths, self.budget = list(lengths), budget
        self.num_replicas, self.rank, self.seed = num_replicas, rank, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _plan(self) -> List[List[int]]:
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=g).tolist()
        bins = first_fit(self.lengths, order, self.budget)
        wanted = math.ceil(len(bins) / self.num_replicas) * self.num_replicas
        return bins + bins[: wanted - len(bins)]

    def __iter__(self) -> Iterator[List[int]]:
        return iter(self._plan()[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return len(self._plan()) // self.num_replicas
