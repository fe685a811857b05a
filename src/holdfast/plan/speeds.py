"""What ranks were measured to do, as kinds of GPUs that a batch is dealt out to.

Ranks of like speed and like memory are one kind, so that noise does not make every GPU one of its own; a kind is as
slow as its slowest rank, and fits what fits into all of them. What a rank was not measured at lies on the line between
its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadValue
from holdfast.plan.batches import Allotment, Kind, Meeting, allot

#: Ranks whose speeds differ by less are alike: repeated runs on one GPU differ by some percent.
ALIKE = 0.1


class Speed(msgspec.Struct, frozen=True):
    """One rank: seconds of a micro-batch at some sizes (ascending, the first is 1 sample, the last the most that fits).

    ``device`` is how it is called; nothing is decided by it. ``limited``: why larger ones were not tried.
    """

    rank: int
    device: str
    sizes: tuple[int, ...]
    times_s: tuple[float, ...]
    limited: str = ""

    @property
    def most(self) -> int:
        """The largest micro-batch, in samples."""
        return self.sizes[-1]

    @property
    def samples_per_s(self) -> float:
        """At the size at which it is highest."""
        return max(size / time for size, time in zip(self.sizes, self.times_s, strict=True))

    def table(self) -> tuple[float, ...]:
        """Seconds of a micro-batch of 1, 2, … samples up to the most that fits."""
        points = list(zip(self.sizes, self.times_s, strict=True))
        found = [points[0][1]]
        for (low, from_s), (high, to_s) in pairwise(points):
            found += [from_s + (to_s - from_s) * (n - low) / (high - low) for n in range(low + 1, high + 1)]
        return tuple(found)


class Speeds(msgspec.Struct, frozen=True):
    """All ranks, in their order; ``alike``: the part by which speeds (and memories) of one kind may differ.

    Raises:
        BadValue: no rank, or a rank whose figures are none.
    """

    ranks: tuple[Speed, ...]
    alike: float = ALIKE

    def __post_init__(self) -> None:
        if not self.ranks:
            raise BadValue("the speeds of ranks", why="there is no rank")
        for speed in self.ranks:
            wrong = _wrong_with(speed)
            if wrong:
                raise BadValue(f"the speed of rank {speed.rank}", why=wrong)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Places of the ranks of like speed and memory in ``ranks``, the fastest group first."""
        order = sorted(range(len(self.ranks)), key=lambda at: (-self.ranks[at].samples_per_s, at))
        found: list[list[int]] = []
        for at in order:
            fitting = next((group for group in found if self._like(group[0], at)), None)
            if fitting is None:
                found.append([at])
            else:
                fitting.append(at)
        return tuple(tuple(sorted(group)) for group in found)

    def _like(self, first: int, other: int) -> bool:
        """Compared with a group's first, the fastest, so that a chain of small steps does not join far ends."""
        one, two = self.ranks[first], self.ranks[other]
        near = one.samples_per_s <= two.samples_per_s * (1 + self.alike)
        return near and max(one.most, two.most) <= min(one.most, two.most) * (1 + self.alike)

    def kinds(self) -> tuple[Kind, ...]:
        """One for each of :meth:`groups`."""
        found = []
        for group in self.groups():
            tables = [self.ranks[at].table() for at in group]
            most = min(map(len, tables))
            times = tuple(max(table[n] for table in tables) for n in range(most))
            names = sorted({self.ranks[at].device for at in group})
            found.append(Kind(", ".join(names), len(group), times))
        return tuple(found)

    def allot(self, batch: int, meeting: Meeting = Meeting.MICRO_BATCH, meet_s: float = 0.0) -> Allotment:
        """:func:`holdfast.plan.batches.allot` for these ranks; its shares are in the order of ``ranks``.

        Raises:
            BadValue: the batch cannot be met exactly; the nearest ones are offered.
        """
        found = allot(self.kinds(), batch, meeting, meet_s)
        places = [at for group in self.groups() for at in group]
        shares = [replace(share, rank=at) for at, share in zip(places, found.shares, strict=True)]
        return replace(found, shares=tuple(sorted(shares, key=lambda share: share.rank)))

    def slowed(self, factors: Mapping[int, float]) -> Speeds:
        """The same where the ranks at these places take so many times as long."""
        ranks = [
            replace(speed, times_s=tuple(time * factors.get(at, 1.0) for time in speed.times_s))
            for at, speed in enumerate(self.ranks)
        ]
        return replace(self, ranks=tuple(ranks))

    def step_s(self, sizes: Sequence[Sequence[int]], meeting: Meeting) -> float:
        """How long a step takes with such micro-batches, without its collectives.

        Raises:
            BadValue: a rank is given more samples than it was measured with.
        """
        times = [self.busy(at, mine) for at, mine in enumerate(sizes)]
        if meeting is Meeting.STEP:
            return max(map(sum, times))
        return float(sum(max(each) for each in zip(*times, strict=True)))

    def busy(self, at: int, sizes: Sequence[int]) -> list[float]:
        """Seconds of each of these micro-batches on the rank at this place. Raises BadValue as above."""
        table = self.ranks[at].table()
        if max(sizes) > len(table):
            raise BadValue(f"a micro-batch of {max(sizes)} on rank {self.ranks[at].rank}",
                           why=f"at most {len(table)} were measured to fit")  # fmt: skip
        return [table[size - 1] for size in sizes]


def _wrong_with(speed: Speed) -> str:
    if not speed.sizes or speed.sizes[0] != 1 or len(speed.sizes) != len(speed.times_s):
        return "it needs times of micro-batches from 1 sample on" + (f": {speed.limited}" if speed.limited else "")
    if any(high <= low for low, high in pairwise(speed.sizes)):
        return "its sizes do not ascend"
    if not all(0 < time < float("inf") for time in speed.times_s):
        return "each time has to be a number of seconds above 0"
    return ""
