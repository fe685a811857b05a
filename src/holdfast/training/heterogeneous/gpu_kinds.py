"""Group measured ranks into kinds of GPUs.

Ranks of similar speed and memory form one kind, so that noise does not make every GPU its own kind;
a kind is as slow as its slowest rank, and fits what fits into all of them. Unmeasured sizes are
interpolated linearly.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_allocation import (
    BatchAllocation,
    GpuKind,
    SyncPoint,
    allocate_batch,
)
from holdfast.training.renamed_keywords import renamed_keywords

#: Ranks whose speeds differ by less than 10% are similar: repeated runs differ by some percent.
SIMILARITY = 0.1


class RankSpeed(msgspec.Struct, frozen=True):
    """One rank: seconds of a micro-batch at some sizes, ascending from 1 to the largest that fits.

    ``device`` is a display name only. ``limited``: why larger sizes were not tried.
    """

    rank: int
    device: str
    sizes: tuple[int, ...]
    times_s: tuple[float, ...]
    limited: str = ""

    @property
    def most(self) -> int:
        """Return the largest micro-batch, in samples."""
        return self.sizes[-1]

    @property
    def samples_per_s(self) -> float:
        """Return the throughput at the fastest size."""
        return max(size / time for size, time in zip(self.sizes, self.times_s, strict=True))

    def table(self) -> tuple[float, ...]:
        """Return seconds of a micro-batch of 1, 2, … samples up to the largest that fits."""
        points = list(zip(self.sizes, self.times_s, strict=True))
        result = [points[0][1]]
        for (low, from_s), (high, to_s) in pairwise(points):
            result += [
                from_s + (to_s - from_s) * (n - low) / (high - low)
                for n in range(low + 1, high + 1)
            ]
        return tuple(result)


class RankSpeeds(msgspec.Struct, frozen=True):
    """All ranks in order; ``alike`` is the relative difference allowed within one kind.

    Raises:
        InvalidValue: there is no rank, or a rank with invalid measurements.
    """

    ranks: tuple[RankSpeed, ...]
    alike: float = SIMILARITY

    def __post_init__(self) -> None:
        if not self.ranks:
            raise InvalidValue("the speeds of ranks", why="the list is empty")
        for speed in self.ranks:
            problem = _validation_error(speed)
            if problem:
                raise InvalidValue(f"the speed of rank {speed.rank}", why=problem)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return indices of similar ranks in ``ranks``, fastest group first."""
        order = sorted(
            range(len(self.ranks)), key=lambda index: (-self.ranks[index].samples_per_s, index)
        )
        result: list[list[int]] = []
        for index in order:
            matching_group = next(
                (group for group in result if self._is_similar(group[0], index)), None
            )
            if matching_group is None:
                result.append([index])
            else:
                matching_group.append(index)
        return tuple(tuple(sorted(group)) for group in result)

    def _is_similar(self, first: int, other: int) -> bool:
        """Compare with a group's fastest rank.

        Pairwise comparison would let a chain of small differences merge distant ranks.
        """
        first_speed, other_speed = self.ranks[first], self.ranks[other]
        similar_speed = first_speed.samples_per_s <= other_speed.samples_per_s * (1 + self.alike)
        return similar_speed and max(first_speed.most, other_speed.most) <= min(
            first_speed.most, other_speed.most
        ) * (1 + self.alike)

    def kinds(self) -> tuple[GpuKind, ...]:
        """Return one kind for each of :meth:`groups`."""
        result = []
        for group in self.groups():
            tables = [self.ranks[index].table() for index in group]
            most = min(map(len, tables))
            times = tuple(max(table[n] for table in tables) for n in range(most))
            names = sorted({self.ranks[index].device for index in group})
            result.append(GpuKind(", ".join(names), len(group), times))
        return tuple(result)

    def allot(self, *args: Any, **kwargs: Any) -> BatchAllocation:
        """Deprecated name of :meth:`allocate`."""
        warnings.warn("allot is now allocate", DeprecationWarning, stacklevel=2)
        return self.allocate(*args, **kwargs)

    @renamed_keywords(meeting="sync_point", meet_s="sync_s")
    def allocate(
        self, batch: int, sync_point: SyncPoint = SyncPoint.MICRO_BATCH, sync_s: float = 0.0
    ) -> BatchAllocation:
        """Divide a batch among these ranks; see :func:`batch_allocation.allocate_batch`.

        ``sync_s`` is the time of one synchronization, in seconds.

        Raises:
            InvalidValue: the batch cannot be divided exactly; the nearest ones are suggested.
        """
        result = allocate_batch(self.kinds(), batch, sync_point, sync_s)
        ranks_in_groups = [index for group in self.groups() for index in group]
        shares = [
            replace(share, rank=index)
            for index, share in zip(ranks_in_groups, result.shares, strict=True)
        ]
        return replace(result, shares=tuple(sorted(shares, key=lambda share: share.rank)))

    def slowed(self, factors: Mapping[int, float]) -> RankSpeeds:
        """Return these speeds with the times of some ranks multiplied by ``factors``."""
        ranks = [
            replace(speed, times_s=tuple(time * factors.get(index, 1.0) for time in speed.times_s))
            for index, speed in enumerate(self.ranks)
        ]
        return replace(self, ranks=tuple(ranks))

    def step_s(self, sizes: Sequence[Sequence[int]], sync_point: SyncPoint) -> float:
        """Return the time of a step with these micro-batches, without its collectives.

        Raises:
            InvalidValue: a micro-batch is larger than measured on its rank.
        """
        times = [self.busy(index, rank_sizes) for index, rank_sizes in enumerate(sizes)]
        if sync_point is SyncPoint.STEP:
            return max(map(sum, times))
        return float(sum(max(each) for each in zip(*times, strict=True)))

    def busy(self, index: int, sizes: Sequence[int]) -> list[float]:
        """Return the seconds of each micro-batch on one rank. Raises InvalidValue as above."""
        table = self.ranks[index].table()
        if max(sizes) > len(table):
            raise InvalidValue(
                f"a micro-batch of {max(sizes)} on rank {self.ranks[index].rank}",
                why=f"at most {len(table)} samples were measured to fit",
            )
        return [table[size - 1] for size in sizes]


def _validation_error(speed: RankSpeed) -> str:
    if not speed.sizes or speed.sizes[0] != 1 or len(speed.sizes) != len(speed.times_s):
        return "it needs times of micro-batches from 1 sample" + (
            f": {speed.limited}" if speed.limited else ""
        )
    if any(high <= low for low, high in pairwise(speed.sizes)):
        return "its sizes do not ascend"
    if not all(0 < time < float("inf") for time in speed.times_s):
        return "each time must be a positive number of seconds"
    return ""
