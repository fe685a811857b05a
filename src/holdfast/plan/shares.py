"""Who takes which samples: a global batch cut into each rank's micro-batches, and an epoch into global batches.

``shares[r]`` are the sizes of rank r's micro-batches in a step, in samples: :class:`holdfast.plan.batches.Allotment`
makes them, or whoever knows better. Where ranks meet at every micro-batch all have equally many; else the numbers may
differ (see :class:`holdfast.plan.batches.Meeting`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.batches import Allotment, Meeting

Sizes = tuple[tuple[int, ...], ...]


class Shares(msgspec.Struct, frozen=True):
    """The sizes of all ranks' micro-batches in one step, and where the ranks wait for each other.

    Raises:
        BadValue: a rank without samples, or unequal numbers of micro-batches where ranks meet at each.
    """

    sizes: Sizes
    meeting: Meeting = Meeting.MICRO_BATCH

    def __post_init__(self) -> None:
        if not self.sizes:
            raise BadValue("the shares of a batch", why="they name no rank")
        for rank, mine in enumerate(self.sizes):
            if not mine or min(mine) < 1:
                raise BadValue("the shares of a batch", why=f"rank {rank} has a micro-batch without samples, or none")
        counts = sorted({len(mine) for mine in self.sizes})
        if self.meeting is Meeting.MICRO_BATCH and len(counts) > 1:
            raise BadValue("the shares of a batch",
                           why=f"ranks make {' and '.join(map(str, counts))} micro-batches, and would wait for ever "
                               "where they meet at each of them",
                           next_step="make them equal, or say Meeting.STEP where ranks meet once a step")  # fmt: skip

    @property
    def world(self) -> int:
        """Ranks."""
        return len(self.sizes)

    @property
    def batch(self) -> int:
        """Samples of all ranks in a step."""
        return sum(map(sum, self.sizes))

    def possible(self, samples: int) -> bool:
        """Whether a global batch of so many samples, no more than the whole one, can be dealt out by :meth:`of`."""
        return self._rounds(samples) is not None

    def of(self, samples: int) -> Sizes:
        """The sizes where the global batch has fewer samples, by the same proportions and none larger than before.

        Raises:
            BadValue: every rank needs a sample in each of its micro-batches, and there are not so many.
        """
        if samples == self.batch:
            return self.sizes
        rounds = self._rounds(samples)
        if rounds is None:
            raise BadValue(f"a global batch of {samples} over shares for {self.batch}",
                           why=f"each of {self.world} ranks needs a sample in each of its micro-batches")  # fmt: skip
        kept = [list(mine[:rounds]) for mine in self.sizes]
        return tuple(map(tuple, _shrunk(kept, samples)))

    def _rounds(self, samples: int) -> int | None:
        """Of how many micro-batches a rank keeps so many are needed; None where it cannot be done."""
        taken = 0
        for rounds in range(1, max(map(len, self.sizes)) + 1):
            taken += sum(mine[rounds - 1] for mine in self.sizes if len(mine) >= rounds)
            least = sum(min(rounds, len(mine)) for mine in self.sizes)
            if least <= samples <= taken:
                return rounds
        return None

    def epoch(self, samples: int) -> list[int] | None:
        """Global batches that are exactly ``samples`` together, none larger than the whole one; None: there are none.

        All are whole but for the last one; where that would be too small to be dealt out, the one before it lends it
        samples.
        """
        whole, rest = divmod(samples, self.batch)
        if not rest or self.possible(rest):
            return [self.batch] * whole + [rest] * bool(rest)
        for lent in range(1, self.batch if whole else 0):
            if self.possible(rest + lent) and self.possible(self.batch - lent):
                return [*[self.batch] * (whole - 1), self.batch - lent, rest + lent]
        return None


def shares_of(given: Shares | Allotment | Sequence[Sequence[int]]) -> Shares:
    """What was given, as shares. Plain sizes with unequal numbers of micro-batches are for ranks that meet each step.

    Raises:
        BadValue: see :class:`Shares`.
    """
    if isinstance(given, Shares):
        return given
    if isinstance(given, Allotment):
        ordered = sorted(given.shares, key=lambda share: share.rank)
        return Shares(tuple(share.micro_batches for share in ordered), given.meeting)
    sizes = tuple(tuple(int(size) for size in mine) for mine in given)
    equal = len({len(mine) for mine in sizes}) <= 1
    return Shares(sizes, Meeting.MICRO_BATCH if equal else Meeting.STEP)


def equal_shares(world: int, batch: int, micro_batches: int = 1) -> Shares:
    """As is done without a plan: all ranks get as many samples, or one more, in so many micro-batches.

    Raises:
        BadValue: there are not so many samples.
    """
    parts = [_parts(mine, micro_batches) for mine in _parts(batch, world)]
    return Shares(tuple(map(tuple, parts)))


def _parts(samples: int, count: int) -> list[int]:
    each, more = divmod(samples, count)
    return [each + (at < more) for at in range(count)]


def _shrunk(sizes: list[list[int]], samples: int) -> list[list[int]]:
    """Take samples out of each micro-batch in proportion to its size; one is left in each (largest remainders)."""
    places = [(rank, at) for rank, mine in enumerate(sizes) for at in range(len(mine))]
    spare = sum(map(sum, sizes)) - len(places)
    left = samples - len(places)
    whole = {(rank, at): (sizes[rank][at] - 1) * left // spare if spare else 0 for rank, at in places}
    odd = sorted(places, key=lambda place: (-((sizes[place[0]][place[1]] - 1) * left % spare) if spare else 0, place))
    for place in odd[: left - sum(whole.values())]:
        whole[place] += 1
    return [[1 + whole[rank, at] for at in range(len(mine))] for rank, mine in enumerate(sizes)]
