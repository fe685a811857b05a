"""Divide a global batch among GPUs of unequal speed and memory: exactly, within memory, fastest.

A kind of GPU is described by the time of a micro-batch of 1, 2, … samples, up to what its memory
holds. The optimum depends on where ranks synchronize:

* at every micro-batch (FSDP2, ZeRO-2 and 3, whose collectives come with each forward and backward):
all ranks make the same number of micro-batches, and each lasts as long as its slowest rank. With a
time level for each micro-batch, a rank takes the largest one that it finishes within the level;
finding the levels with the smallest sum that cover the batch is a covering knapsack, solved exactly
by dynamic programming.
* only at every step (DDP under ``no_sync``, ZeRO-1): ranks may accumulate differently; the smallest
time that the slowest rank needs is found by bisection over the possible times.

Both are optimal for the given times; tests compare them with brute force. Averages over unequal
shares are correct only if each rank's loss is weighted: by ``Share.weight`` times the world size if
the backend averages over ranks, and by tokens instead of samples if samples differ in length.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from holdfast.core.errors import InvalidValue

#: How many batch sizes on either side are tried for a suggestion.
_MAX_OFFSET = 4096


class SyncPoint(StrEnum):
    """Where ranks synchronize."""

    MICRO_BATCH = "every micro-batch"
    STEP = "every step"


class GpuKind(msgspec.Struct, frozen=True):
    """``ranks`` GPUs of one kind; ``times_s[n - 1]`` is the time of a micro-batch of n samples.

    In seconds. Sizes beyond the end do not fit into memory.
    """

    name: str
    ranks: int
    times_s: tuple[float, ...]

    @property
    def most(self) -> int:
        """Return the largest micro-batch that fits, in samples."""
        return len(self.times_s)

    @property
    def rising_s(self) -> tuple[float, ...]:
        """Return the times without dips, which are noise: more samples never take less time."""
        return tuple(itertools.accumulate(self.times_s, max))


class Share(msgspec.Struct, frozen=True):
    """One rank's work in a step: the sizes of its micro-batches in samples, in order."""

    rank: int
    kind: str
    micro_batches: tuple[int, ...]
    busy_s: float
    #: Fraction of all samples; the sum over ranks is 1.
    weight: float

    @property
    def samples(self) -> int:
        """Return the samples of one step."""
        return sum(self.micro_batches)


class BatchAllocation(msgspec.Struct, frozen=True):
    """The shares of all ranks, which add up to ``batch`` samples, and the resulting step time.

    ``equal_s`` is the step time with equal shares (or one sample more), as without planning; None
    if these do not fit.
    """

    batch: int
    meeting: SyncPoint
    step_s: float
    equal_s: float | None
    shares: tuple[Share, ...]

    @property
    def samples_per_s(self) -> float:
        """Return the throughput of the job."""
        return self.batch / self.step_s


def linear_kind(name: str, ranks: int, fixed_s: float, sample_s: float, most: int) -> GpuKind:
    """Return a kind that takes ``fixed_s`` plus ``sample_s`` per sample, up to ``most`` samples."""
    return GpuKind(name, ranks, tuple(fixed_s + sample_s * count for count in range(1, most + 1)))


def allocate_batch(
    kinds: Sequence[GpuKind], batch: int, meeting: SyncPoint, sync_s: float = 0.0
) -> BatchAllocation:
    """Divide ``batch`` samples; every rank gets at least one in each of its micro-batches.

    ``sync_s`` is the time of a synchronization (its exposed collectives), in seconds.

    Raises:
        InvalidValue: no kind, no rank, invalid times, or a batch that cannot be divided exactly.
    """
    _check(kinds, batch, sync_s)
    if not is_possible(kinds, batch, meeting):
        raise InvalidValue(
            f"a global batch of {batch}",
            why=_explain_impossible(kinds, batch, meeting),
            next_step=_suggest_batches(
                [each for each in nearest_batches(kinds, batch, meeting) if each]
            ),
        )
    if meeting is SyncPoint.STEP:
        rank_sizes = _allocate_per_step(kinds, batch)
        step_s = max(_busy_s(kind, sizes) for kind, sizes in rank_sizes) + sync_s
    else:
        rank_sizes = _allocate_per_micro_batch(kinds, batch, sync_s)
        step_s = _lockstep_s(rank_sizes) + sync_s * len(rank_sizes[0][1])
    shares = tuple(
        Share(rank, kind.name, tuple(sizes), _busy_s(kind, sizes), sum(sizes) / batch)
        for rank, (kind, sizes) in enumerate(rank_sizes)
    )
    return BatchAllocation(batch, meeting, step_s, _equal_s(kinds, batch, meeting, sync_s), shares)


def is_possible(kinds: Sequence[GpuKind], batch: int, meeting: SyncPoint) -> bool:
    """Return whether the batch can be divided exactly."""
    world, most = sum(kind.ranks for kind in kinds), sum(kind.ranks * kind.most for kind in kinds)
    if meeting is SyncPoint.STEP:
        return batch >= world
    rounds = -(-batch // most)  # fewer do not fit, more need more samples
    return rounds * world <= batch


def nearest_batches(
    kinds: Sequence[GpuKind], batch: int, meeting: SyncPoint
) -> tuple[int | None, int | None]:
    """Return the next smaller and larger possible batch; None if there is none nearby."""
    below = (
        each
        for each in range(batch - 1, max(0, batch - _MAX_OFFSET), -1)
        if is_possible(kinds, each, meeting)
    )
    above = (
        each for each in range(batch + 1, batch + _MAX_OFFSET) if is_possible(kinds, each, meeting)
    )
    return next(below, None), next(above, None)


# ---- synchronization at every step


def _allocate_per_step(kinds: Sequence[GpuKind], batch: int) -> list[tuple[GpuKind, list[int]]]:
    """Return the shares with the smallest maximum time, by bisection over possible times."""
    tables = [_accumulation_table(kind, batch) for kind in kinds]
    levels = sorted({float(time) for table, _ in tables for time in table[1:]})

    def counts_at(level: float) -> list[int]:
        return [int(np.searchsorted(table, level, side="right")) - 1 for table, _ in tables]

    def is_enough(level: float) -> bool:
        counts = counts_at(level)
        return (
            min(counts) >= 1
            and sum(n * kind.ranks for n, kind in zip(counts, kinds, strict=True)) >= batch
        )

    level = levels[bisect.bisect_left(levels, x=True, key=is_enough)]
    shares = [
        count
        for count, kind in zip(counts_at(level), kinds, strict=True)
        for _ in range(kind.ranks)
    ]
    kind_of_rank = [number for number, kind in enumerate(kinds) for _ in range(kind.ranks)]
    _remove_surplus(
        shares, sum(shares) - batch, [float(tables[number][0][1]) for number in kind_of_rank]
    )
    return [
        (kinds[number], _micro_batch_sizes(tables[number][1], share))
        for number, share in zip(kind_of_rank, shares, strict=True)
    ]


def _accumulation_table(kind: GpuKind, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimal time of 0, 1, … samples in any micro-batches, and each last size."""
    times, most = np.asarray(kind.rising_s), kind.most
    best, last = np.zeros(batch + 1), np.zeros(batch + 1, dtype=np.int64)
    for samples in range(1, batch + 1):
        sizes = min(samples, most)
        step_times = times[:sizes] + best[samples - sizes : samples][::-1]
        at = int(np.argmin(step_times))
        best[samples], last[samples] = step_times[at], at + 1
    return best, last


def _micro_batch_sizes(last: np.ndarray, share: int) -> list[int]:
    rank_sizes = []
    while share:
        rank_sizes.append(int(last[share]))
        share -= rank_sizes[-1]
    return sorted(rank_sizes, reverse=True)


# ---- synchronization at every micro-batch


def _allocate_per_micro_batch(
    kinds: Sequence[GpuKind], batch: int, sync_s: float
) -> list[tuple[GpuKind, list[int]]]:
    """Return the micro-batch sizes for the levels with the smallest sum."""
    floor = max(kind.rising_s[0] for kind in kinds)  # every rank has at least one sample
    levels = sorted({time for kind in kinds for time in kind.rising_s if time >= floor})
    sizes = [[bisect.bisect_right(kind.rising_s, level) for kind in kinds] for level in levels]
    samples_at = [
        sum(size * kind.ranks for size, kind in zip(row, kinds, strict=True)) for row in sizes
    ]
    world = sum(kind.ranks for kind in kinds)
    costs = [level + sync_s for level in levels]
    chosen = _cover_knapsack(costs, samples_at, batch)
    if len(chosen) * world > batch:  # too many for one sample per rank in each
        chosen = _bounded_cover_knapsack(costs, samples_at, batch, batch // world)
    kind_of_rank = [number for number, kind in enumerate(kinds) for _ in range(kind.ranks)]
    columns = [
        [sizes[level][number] for number in kind_of_rank] for level in sorted(chosen, reverse=True)
    ]
    surplus = sum(map(sum, columns)) - batch
    cost = [kinds[number].rising_s[0] for number in kind_of_rank]
    for column in reversed(columns):
        surplus = _remove_surplus(column, surplus, cost)
    return [
        (kinds[number], [column[rank] for column in columns])
        for rank, number in enumerate(kind_of_rank)
    ]


def _cover_knapsack(costs: Sequence[float], samples_at: Sequence[int], batch: int) -> list[int]:
    """Return levels (repeatable) that take at least ``batch`` samples at the lowest cost."""
    cost, size = np.asarray(costs), np.asarray(samples_at)
    best, last = np.zeros(batch + 1), np.zeros(batch + 1, dtype=np.int64)
    for samples in range(1, batch + 1):
        step_times = cost + best[np.maximum(samples - size, 0)]
        last[samples] = int(np.argmin(step_times))
        best[samples] = step_times[last[samples]]
    chosen, left = [], batch
    while left > 0:
        chosen.append(int(last[left]))
        left -= samples_at[chosen[-1]]
    return chosen


def _bounded_cover_knapsack(
    costs: Sequence[float], samples_at: Sequence[int], batch: int, rounds: int
) -> list[int]:
    """Like :func:`_cover_knapsack`, with at most ``rounds`` levels."""
    samples = np.arange(batch + 1)
    best = np.concatenate([[0.0], np.full(batch, np.inf)])
    lasts = []
    for _ in range(rounds):
        next_best, last = best.copy(), np.full(batch + 1, -1)
        for number, (cost, size) in enumerate(zip(costs, samples_at, strict=True)):
            step_times = best[np.maximum(samples - size, 0)] + cost
            better = step_times < next_best
            next_best[better], last[better] = step_times[better], number
        lasts.append(last)
        best = next_best
    chosen, left = [], batch
    for last in reversed(lasts):
        if last[left] >= 0:
            chosen.append(int(last[left]))
            left = max(left - samples_at[chosen[-1]], 0)
    return chosen


# ---- shared


def _remove_surplus(shares: list[int], surplus: int, slow: Sequence[float]) -> int:
    """Remove ``surplus`` samples evenly, slowest ranks first, leaving one each; return the rest."""
    order = sorted(range(len(shares)), key=lambda rank: -slow[rank])
    while surplus and (movable := [rank for rank in order if shares[rank] > 1]):
        each = max(1, surplus // len(movable))
        for rank in movable:
            samples_at = min(each, shares[rank] - 1, surplus)
            shares[rank] -= samples_at
            surplus -= samples_at
    return surplus


def _busy_s(kind: GpuKind, sizes: Sequence[int]) -> float:
    return sum(kind.rising_s[size - 1] for size in sizes)


def _lockstep_s(rank_sizes: Sequence[tuple[GpuKind, Sequence[int]]]) -> float:
    """Return the sum over micro-batches of the slowest rank's time."""
    distinct = {(kind, tuple(sizes)) for kind, sizes in rank_sizes}
    times = [[kind.rising_s[size - 1] for size in sizes] for kind, sizes in distinct]
    return float(sum(max(each) for each in zip(*times, strict=True)))


def _equal_s(
    kinds: Sequence[GpuKind], batch: int, meeting: SyncPoint, sync_s: float
) -> float | None:
    """Return the step time if all ranks have equally many samples, or one more."""
    share, more = divmod(batch, sum(kind.ranks for kind in kinds))
    if not share:
        return None
    most = share + bool(more)
    if meeting is SyncPoint.STEP:
        return max(float(_accumulation_table(kind, most)[0][most]) for kind in kinds) + sync_s
    fits = min(kind.most for kind in kinds)
    slowest = [max(times) for times in zip(*(kind.rising_s[:fits] for kind in kinds), strict=True)]
    step_times = []
    for rounds in range(-(-most // fits), share + 1):
        size, larger = divmod(most, rounds)
        step_times.append(
            larger * slowest[min(size, fits - 1)]
            + (rounds - larger) * slowest[size - 1]
            + rounds * sync_s
        )
    return min(step_times, default=None)


def _check(kinds: Sequence[GpuKind], batch: int, sync_s: float) -> None:
    if not kinds:
        raise InvalidValue("the list of GPU kinds", why="it is empty")
    for kind in kinds:
        if kind.ranks < 1:
            raise InvalidValue(
                f"the number of ranks of kind {kind.name!r}", why=f"{kind.ranks} is less than 1"
            )
        if not kind.times_s:
            raise InvalidValue(
                f"the kind {kind.name!r}", why="not even one sample fits into its memory"
            )
        if not all(0 < time < float("inf") for time in kind.times_s):
            raise InvalidValue(
                f"the times of kind {kind.name!r}", why="each must be a positive number of seconds"
            )
    if batch < 1:
        raise InvalidValue(f"a global batch of {batch}", why="it must be at least 1")
    if not 0 <= sync_s < float("inf"):
        raise InvalidValue(f"a synchronization of {sync_s} s", why="it must be a number of seconds")


def _explain_impossible(kinds: Sequence[GpuKind], batch: int, meeting: SyncPoint) -> str:
    world = sum(kind.ranks for kind in kinds)
    if batch < world or meeting is SyncPoint.STEP:
        return f"each of {world} ranks needs at least one sample"
    most = sum(kind.ranks * kind.most for kind in kinds)
    rounds = -(-batch // most)
    return (
        f"{rounds} micro-batches are needed ({most} samples fit into memory at once), each with "
        "at least "
        f"one sample for each of {world} ranks: {rounds * world} in all"
    )


def _suggest_batches(suggestions: Sequence[int]) -> str:
    return (
        f"use a batch of {' or '.join(map(str, suggestions))}" if suggestions else "use fewer ranks"
    )
