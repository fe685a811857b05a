"""A global batch over GPUs of unequal speed and memory: exactly as large as asked, within memory, in the least time.

A kind of GPU is described by how long it takes for a micro-batch of 1, 2, … samples, as far as its memory goes. Where
ranks meet decides what is best:

* at every micro-batch (FSDP2, ZeRO-2 and 3, whose collectives come with each forward and backward): all ranks make the
  same number of micro-batches, and each lasts as long as its slowest rank. With a level for each micro-batch, the time
  that everybody may take, a rank takes the largest one that it finishes in it; the levels whose sum is least while
  enough samples are taken are a covering knapsack, solved exactly by dynamic programming.
* at every step alone (DDP under ``no_sync``, ZeRO-1): ranks may accumulate as often as suits them; the least time that
  the slowest rank needs is found by bisection over the times that are possible.

Both are optimal for the times given; the comparison with brute force is in the tests. Averages of unequal shares are
right only if each rank's loss is weighted: by ``Share.weight`` times the world size where the backend averages over
ranks, and by tokens instead of samples where samples differ in length.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from holdfast.errors import BadValue

#: So many batch sizes on either side are tried before none is offered.
_NEAR = 4096


class Meeting(StrEnum):
    """Where ranks wait for each other."""

    MICRO_BATCH = "every micro-batch"
    STEP = "every step"


class Kind(msgspec.Struct, frozen=True):
    """``ranks`` GPUs of one kind. ``times_s[n - 1]`` is the time of a micro-batch of n samples, in seconds.

    What is not in it does not fit into memory.
    """

    name: str
    ranks: int
    times_s: tuple[float, ...]

    @property
    def most(self) -> int:
        """The largest micro-batch that fits, in samples."""
        return len(self.times_s)

    @property
    def rising_s(self) -> tuple[float, ...]:
        """The times without dips, which are noise: more samples never take less time."""
        return tuple(itertools.accumulate(self.times_s, max))


class Share(msgspec.Struct, frozen=True):
    """What one rank does in a step: the sizes of its micro-batches in samples, in their order."""

    rank: int
    kind: str
    micro_batches: tuple[int, ...]
    busy_s: float
    #: Of all samples; the sum over ranks is 1.
    weight: float

    @property
    def samples(self) -> int:
        """In one step."""
        return sum(self.micro_batches)


class Allotment(msgspec.Struct, frozen=True):
    """The shares of all ranks, whose samples are exactly ``batch``, and how long a step takes with them.

    ``equal_s`` is the time where all ranks get the same number of samples, or one more, as is done without a plan; None
    where that does not fit.
    """

    batch: int
    meeting: Meeting
    step_s: float
    equal_s: float | None
    shares: tuple[Share, ...]

    @property
    def samples_per_s(self) -> float:
        """Throughput of the whole job."""
        return self.batch / self.step_s


def linear(name: str, ranks: int, fixed_s: float, sample_s: float, most: int) -> Kind:
    """A kind whose micro-batches take ``fixed_s`` and ``sample_s`` for each sample, up to ``most`` samples."""
    return Kind(name, ranks, tuple(fixed_s + sample_s * count for count in range(1, most + 1)))


def allot(kinds: Sequence[Kind], batch: int, meeting: Meeting, meet_s: float = 0.0) -> Allotment:
    """Deal ``batch`` samples out; every rank has at least one in each micro-batch that it makes.

    ``meet_s`` is the time of a meeting (its collectives, as far as nothing hides them), in seconds.

    Raises:
        BadValue: no kind, no rank, times that are no times, or a batch that cannot be met exactly.
    """
    _check(kinds, batch, meet_s)
    if not possible(kinds, batch, meeting):
        raise BadValue(
            f"a global batch of {batch}",
            why=_why_not(kinds, batch, meeting),
            next_step=_offer([each for each in nearest(kinds, batch, meeting) if each]),
        )
    if meeting is Meeting.STEP:
        parts = _by_step(kinds, batch)
        step_s = max(_busy(kind, sizes) for kind, sizes in parts) + meet_s
    else:
        parts = _by_micro_batch(kinds, batch, meet_s)
        step_s = _in_lockstep(parts) + meet_s * len(parts[0][1])
    shares = tuple(
        Share(rank, kind.name, tuple(sizes), _busy(kind, sizes), sum(sizes) / batch)
        for rank, (kind, sizes) in enumerate(parts)
    )
    return Allotment(batch, meeting, step_s, _equal_s(kinds, batch, meeting, meet_s), shares)


def possible(kinds: Sequence[Kind], batch: int, meeting: Meeting) -> bool:
    """Whether so many samples can be dealt out exactly."""
    world, most = sum(kind.ranks for kind in kinds), sum(kind.ranks * kind.most for kind in kinds)
    if meeting is Meeting.STEP:
        return batch >= world
    rounds = -(-batch // most)  # fewer do not fit, and more only ask for more
    return rounds * world <= batch


def nearest(kinds: Sequence[Kind], batch: int, meeting: Meeting) -> tuple[int | None, int | None]:
    """The next smaller and the next larger batch that can be dealt out; None where there is none near."""
    below = (each for each in range(batch - 1, max(0, batch - _NEAR), -1) if possible(kinds, each, meeting))
    above = (each for each in range(batch + 1, batch + _NEAR) if possible(kinds, each, meeting))
    return next(below, None), next(above, None)


# ---- ranks meet at every step


def _by_step(kinds: Sequence[Kind], batch: int) -> list[tuple[Kind, list[int]]]:
    """The shares with the least longest time: bisection over the times that any share of any kind can take."""
    tables = [_accumulated(kind, batch) for kind in kinds]
    levels = sorted({float(time) for table, _ in tables for time in table[1:]})

    def dealt(level: float) -> list[int]:
        return [int(np.searchsorted(table, level, side="right")) - 1 for table, _ in tables]

    def enough(level: float) -> bool:
        counts = dealt(level)
        return min(counts) >= 1 and sum(n * kind.ranks for n, kind in zip(counts, kinds, strict=True)) >= batch

    level = levels[bisect.bisect_left(levels, x=True, key=enough)]
    shares = [count for count, kind in zip(dealt(level), kinds, strict=True) for _ in range(kind.ranks)]
    every = [number for number, kind in enumerate(kinds) for _ in range(kind.ranks)]
    _take_back(shares, sum(shares) - batch, [float(tables[number][0][1]) for number in every])
    return [(kinds[number], _parts(tables[number][1], share)) for number, share in zip(every, shares, strict=True)]


def _accumulated(kind: Kind, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The least time of 0, 1, … samples over any number of micro-batches, and the last micro-batch of each."""
    times, most = np.asarray(kind.rising_s), kind.most
    best, last = np.zeros(batch + 1), np.zeros(batch + 1, dtype=np.int64)
    for samples in range(1, batch + 1):
        sizes = min(samples, most)
        found = times[:sizes] + best[samples - sizes : samples][::-1]
        at = int(np.argmin(found))
        best[samples], last[samples] = found[at], at + 1
    return best, last


def _parts(last: np.ndarray, share: int) -> list[int]:
    parts = []
    while share:
        parts.append(int(last[share]))
        share -= parts[-1]
    return sorted(parts, reverse=True)


# ---- ranks meet at every micro-batch


def _by_micro_batch(kinds: Sequence[Kind], batch: int, meet_s: float) -> list[tuple[Kind, list[int]]]:
    """The levels with the least sum, and who takes how much in each."""
    floor = max(kind.rising_s[0] for kind in kinds)  # everybody has at least one sample
    levels = sorted({time for kind in kinds for time in kind.rising_s if time >= floor})
    sizes = [[bisect.bisect_right(kind.rising_s, level) for kind in kinds] for level in levels]
    taken = [sum(size * kind.ranks for size, kind in zip(row, kinds, strict=True)) for row in sizes]
    world = sum(kind.ranks for kind in kinds)
    costs = [level + meet_s for level in levels]
    chosen = _cover(costs, taken, batch)
    if len(chosen) * world > batch:  # so many micro-batches that not everybody has a sample in each
        chosen = _cover_within(costs, taken, batch, batch // world)
    every = [number for number, kind in enumerate(kinds) for _ in range(kind.ranks)]
    columns = [[sizes[level][number] for number in every] for level in sorted(chosen, reverse=True)]
    surplus = sum(map(sum, columns)) - batch
    cost = [kinds[number].rising_s[0] for number in every]
    for column in reversed(columns):
        surplus = _take_back(column, surplus, cost)
    return [(kinds[number], [column[rank] for column in columns]) for rank, number in enumerate(every)]


def _cover(costs: Sequence[float], taken: Sequence[int], batch: int) -> list[int]:
    """Levels, each as often as wanted, that take at least ``batch`` samples for the least sum of costs."""
    cost, size = np.asarray(costs), np.asarray(taken)
    best, last = np.zeros(batch + 1), np.zeros(batch + 1, dtype=np.int64)
    for samples in range(1, batch + 1):
        found = cost + best[np.maximum(samples - size, 0)]
        last[samples] = int(np.argmin(found))
        best[samples] = found[last[samples]]
    chosen, left = [], batch
    while left > 0:
        chosen.append(int(last[left]))
        left -= taken[chosen[-1]]
    return chosen


def _cover_within(costs: Sequence[float], taken: Sequence[int], batch: int, rounds: int) -> list[int]:
    """The same with at most so many levels."""
    samples = np.arange(batch + 1)
    best = np.concatenate([[0.0], np.full(batch, np.inf)])
    lasts = []
    for _ in range(rounds):
        following, last = best.copy(), np.full(batch + 1, -1)
        for number, (cost, size) in enumerate(zip(costs, taken, strict=True)):
            found = best[np.maximum(samples - size, 0)] + cost
            better = found < following
            following[better], last[better] = found[better], number
        lasts.append(last)
        best = following
    chosen, left = [], batch
    for last in reversed(lasts):
        if last[left] >= 0:
            chosen.append(int(last[left]))
            left = max(left - taken[chosen[-1]], 0)
    return chosen


# ---- what both need


def _take_back(shares: list[int], surplus: int, slow: Sequence[float]) -> int:
    """Take ``surplus`` samples back, evenly, the slowest ranks first; one is left to each. Gives what is over."""
    order = sorted(range(len(shares)), key=lambda rank: -slow[rank])
    while surplus and (some := [rank for rank in order if shares[rank] > 1]):
        each = max(1, surplus // len(some))
        for rank in some:
            taken = min(each, shares[rank] - 1, surplus)
            shares[rank] -= taken
            surplus -= taken
    return surplus


def _busy(kind: Kind, sizes: Sequence[int]) -> float:
    return sum(kind.rising_s[size - 1] for size in sizes)


def _in_lockstep(parts: Sequence[tuple[Kind, Sequence[int]]]) -> float:
    """The sum over micro-batches of the slowest rank's time."""
    distinct = {(kind, tuple(sizes)) for kind, sizes in parts}
    times = [[kind.rising_s[size - 1] for size in sizes] for kind, sizes in distinct]
    return float(sum(max(each) for each in zip(*times, strict=True)))


def _equal_s(kinds: Sequence[Kind], batch: int, meeting: Meeting, meet_s: float) -> float | None:
    """The time of a step in which all ranks have as many samples, or one more."""
    share, more = divmod(batch, sum(kind.ranks for kind in kinds))
    if not share:
        return None
    most = share + bool(more)
    if meeting is Meeting.STEP:
        return max(float(_accumulated(kind, most)[0][most]) for kind in kinds) + meet_s
    fits = min(kind.most for kind in kinds)
    slowest = [max(times) for times in zip(*(kind.rising_s[:fits] for kind in kinds), strict=True)]
    found = []
    for rounds in range(-(-most // fits), share + 1):
        size, larger = divmod(most, rounds)
        found.append(larger * slowest[min(size, fits - 1)] + (rounds - larger) * slowest[size - 1] + rounds * meet_s)
    return min(found, default=None)


def _check(kinds: Sequence[Kind], batch: int, meet_s: float) -> None:
    if not kinds:
        raise BadValue("the list of kinds of GPUs", why="it is empty")
    for kind in kinds:
        if kind.ranks < 1:
            raise BadValue(f"the number of ranks of kind {kind.name!r}", why=f"{kind.ranks} is less than 1")
        if not kind.times_s:
            raise BadValue(f"the kind {kind.name!r}", why="not one sample fits into its memory")
        if not all(0 < time < float("inf") for time in kind.times_s):
            raise BadValue(f"the times of kind {kind.name!r}", why="each has to be a number of seconds above 0")
    if batch < 1:
        raise BadValue(f"a global batch of {batch}", why="it has to be at least 1")
    if not 0 <= meet_s < float("inf"):
        raise BadValue(f"a meeting of {meet_s} s", why="it has to be a number of seconds")


def _why_not(kinds: Sequence[Kind], batch: int, meeting: Meeting) -> str:
    world = sum(kind.ranks for kind in kinds)
    if batch < world or meeting is Meeting.STEP:
        return f"each of {world} ranks needs one sample at least"
    most = sum(kind.ranks * kind.most for kind in kinds)
    rounds = -(-batch // most)
    return (
        f"{rounds} micro-batches are needed, as {most} samples fit into memory at once, and in each of them every one "
        f"of {world} ranks needs one sample: {rounds * world} in all"
    )


def _offer(near: Sequence[int]) -> str:
    return f"{' or '.join(map(str, near))} can be met exactly" if near else "take fewer ranks"
