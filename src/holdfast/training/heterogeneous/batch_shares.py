"""A global batch divided into each rank's micro-batches, and an epoch into global batches.

``shares[r]`` are the sizes of rank r's micro-batches in a step, in samples, as in
:class:`batch_allocation.BatchAllocation`. If ranks synchronize at every micro-batch all have
equally many; otherwise the numbers may differ (:class:`batch_allocation.SyncPoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_allocation import BatchAllocation, SyncPoint

Sizes = tuple[tuple[int, ...], ...]


class BatchShares(msgspec.Struct, frozen=True):
    """The micro-batch sizes of all ranks in one step, and where the ranks synchronize.

    Raises:
        InvalidValue: a rank has no samples, or ranks that synchronize at each micro-batch have
            unequal numbers of them.
    """

    sizes: Sizes
    sync_point: SyncPoint = SyncPoint.MICRO_BATCH

    def __post_init__(self) -> None:
        if not self.sizes:
            raise InvalidValue("the shares of a batch", why="they are empty")
        for rank, rank_sizes in enumerate(self.sizes):
            if not rank_sizes or min(rank_sizes) < 1:
                raise InvalidValue(
                    "the shares of a batch",
                    why=f"rank {rank} has no micro-batch, or an empty one",
                )
        counts = sorted({len(rank_sizes) for rank_sizes in self.sizes})
        if self.sync_point is SyncPoint.MICRO_BATCH and len(counts) > 1:
            raise InvalidValue(
                "the shares of a batch",
                why=f"ranks make {' and '.join(map(str, counts))} micro-batches, which "
                "deadlocks if they "
                "synchronize at each of them",
                next_step="make them equal, or use SyncPoint.STEP if ranks synchronize once a step",
            )

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return len(self.sizes)

    @property
    def batch(self) -> int:
        """Return the samples of all ranks in a step."""
        return sum(map(sum, self.sizes))

    def possible(self, samples: int) -> bool:
        """Return whether :meth:`of` can divide a global batch of up to the full size."""
        return self._rounds(samples) is not None

    def of(self, samples: int) -> Sizes:
        """Return the sizes for a smaller global batch, in the same proportions, none larger.

        Raises:
            InvalidValue: there are fewer samples than ranks times micro-batches.
        """
        if samples == self.batch:
            return self.sizes
        rounds = self._rounds(samples)
        if rounds is None:
            raise InvalidValue(
                f"a global batch of {samples} over shares for {self.batch}",
                why=f"each of {self.world} ranks needs a sample in each of its micro-batches",
            )
        truncated = [list(rank_sizes[:rounds]) for rank_sizes in self.sizes]
        return tuple(map(tuple, _shrink(truncated, samples)))

    def _rounds(self, samples: int) -> int | None:
        """Return how many micro-batches per rank are needed for this; None if impossible."""
        taken = 0
        for rounds in range(1, max(map(len, self.sizes)) + 1):
            taken += sum(
                rank_sizes[rounds - 1] for rank_sizes in self.sizes if len(rank_sizes) >= rounds
            )
            least = sum(min(rounds, len(rank_sizes)) for rank_sizes in self.sizes)
            if least <= samples <= taken:
                return rounds
        return None

    def epoch(self, samples: int) -> list[int] | None:
        """Divide ``samples`` into global batches of at most the full size; None if impossible.

        All are full except the last; if that is too small to be divided, the one before lends it
        samples.
        """
        full, rest = divmod(samples, self.batch)
        if not rest or self.possible(rest):
            return [self.batch] * full + [rest] * bool(rest)
        for lent in range(1, self.batch if full else 0):
            if self.possible(rest + lent) and self.possible(self.batch - lent):
                return [*[self.batch] * (full - 1), self.batch - lent, rest + lent]
        return None


def shares_of(source: BatchShares | BatchAllocation | Sequence[Sequence[int]]) -> BatchShares:
    """Convert to :class:`Shares`; plain sizes of unequal counts mean synchronization per step.

    Raises:
        InvalidValue: see :class:`Shares`.
    """
    if isinstance(source, BatchShares):
        return source
    if isinstance(source, BatchAllocation):
        ordered = sorted(source.shares, key=lambda share: share.rank)
        return BatchShares(tuple(share.micro_batches for share in ordered), source.meeting)
    sizes = tuple(tuple(int(size) for size in rank_sizes) for rank_sizes in source)
    equal = len({len(rank_sizes) for rank_sizes in sizes}) <= 1
    return BatchShares(sizes, SyncPoint.MICRO_BATCH if equal else SyncPoint.STEP)


def _shrink(sizes: list[list[int]], samples: int) -> list[list[int]]:
    """Remove samples from each micro-batch in proportion (largest remainders), leaving one."""
    positions = [
        (rank, at) for rank, rank_sizes in enumerate(sizes) for at in range(len(rank_sizes))
    ]
    spare = sum(map(sum, sizes)) - len(positions)
    left = samples - len(positions)
    full = {
        (rank, at): (sizes[rank][at] - 1) * left // spare if spare else 0 for rank, at in positions
    }
    by_remainder = sorted(
        positions,
        key=lambda position: (
            -((sizes[position[0]][position[1]] - 1) * left % spare) if spare else 0,
            position,
        ),
    )
    for position in by_remainder[: left - sum(full.values())]:
        full[position] += 1
    return [
        [1 + full[rank, at] for at in range(len(rank_sizes))]
        for rank, rank_sizes in enumerate(sizes)
    ]
