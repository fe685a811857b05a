"""New shares when a rank is slower than measured (a throttled GPU, contention on its host).

The measure is how long a rank is busy, not its step time: the fast ranks wait for the slow one in
every step, so all steps take equally long. The time inside ``with balance.busy():`` is compared
with the prediction of the measured speeds; the first check is the baseline, and later ratios show
who slowed down. All ranks exchange their ratios at the same step, and each computes the same
decision from the same numbers.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch
import torch.distributed as dist
import xxhash

from holdfast.core.errors import InvalidValue, RanksOutOfSync
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.heterogeneous.batch_shares import BatchShares
from holdfast.training.heterogeneous.exchange import exchange_values, ranks_of
from holdfast.training.heterogeneous.gpu_kinds import RankSpeeds
from holdfast.training.heterogeneous.rebalancing import find_better_shares
from holdfast.training.heterogeneous.sampler import HeterogeneousSampler
from holdfast.training.heterogeneous.speed_probe import device_of
from holdfast.training.renamed_keywords import renamed_keywords

_log = logging.getLogger("holdfast.hetero")


class ShareChange(msgspec.Struct, frozen=True):
    """New shares from the step after ``step`` on, the same on all ranks.

    ``slower``: by global rank, the busy time relative to the baseline; ``gain``: the expected
    speedup of a step.
    """

    step: int
    before: BatchShares
    shares: BatchShares
    slower: dict[int, float]
    gain: float

    def __str__(self) -> str:
        """Describe what changed, and why, in one sentence."""
        slow_ranks = [
            f"rank {rank} takes {ratio:.2g}x as long"
            for rank, ratio in self.slower.items()
            if ratio > 1.05
        ]
        previous, current = (
            "/".join(str(sum(relative_ratio)) for relative_ratio in each.sizes)
            for each in (self.before, self.shares)
        )
        return (
            f"after step {self.step} the batch is divided as {current} instead of {previous}, "
            "expected speedup "
            f"{self.gain:.2f}x: {', '.join(slow_ranks) or 'no rank is slower than its baseline'}"
        )


@suggest_keywords
class Rebalancer:
    """Monitors how busy this rank is, and redistributes the batch when that pays; one per rank.

    Ranks compare every ``every`` steps, after ``warm_up`` uncounted steps. New shares apply once
    ``min_gain`` times faster steps are expected at ``patience`` checks in a row, so that short
    hiccups change nothing and shares do not oscillate. ``sync_s``: as for ``Speeds.allocate``. All
    ranks pass the same arguments.

    Each comparison also checks that all ranks are at the same sample with the same shares.

    Raises:
        InvalidValue: the speeds are of other ranks or smaller micro-batches than the sampler's
            shares, or an argument is invalid.
    """

    @renamed_keywords(worth="min_gain", meet_s="sync_s")
    def __init__(  # noqa: PLR0913 - keyword settings
        self,
        sampler: HeterogeneousSampler,
        speeds: RankSpeeds,
        *,
        every: int = 50,
        min_gain: float = 1.1,
        patience: int = 2,
        warm_up: int = 3,
        sync_s: float = 0.0,
        device: torch.device | str | None = None,
        group: dist.ProcessGroup | None = None,
        timeout: float | str | None = None,
    ) -> None:
        if every < 1 or patience < 1 or min_gain < 1 or warm_up < 0:
            raise InvalidValue(
                "Rebalancer",
                why=f"every={every}, min_gain={min_gain}, patience={patience}, warm_up={warm_up}",
            )
        if len(speeds.ranks) != sampler.shares.world:
            raise InvalidValue(
                "Rebalancer",
                why=f"speeds of {len(speeds.ranks)} ranks, but shares of {sampler.shares.world}",
            )
        speeds.step_s(
            sampler.shares.sizes, sampler.shares.sync_point
        )  # refuses shares that were not measured
        self._sampler, self._speeds, self._sync_s = sampler, speeds, sync_s
        self._every, self._min_gain, self._patience, self._warm_up = (
            every,
            min_gain,
            patience,
            warm_up,
        )
        self._group, self._timeout, self._device = group, timeout, device_of(device)
        self._ranks = ranks_of(group)
        self._steps = self._confirmations = 0
        self._baseline: float | None = None
        self._busy: list[float | tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._window: list[
            tuple[float, list[float | tuple[torch.cuda.Event, torch.cuda.Event]]]
        ] = []

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Time what this rank computes without waiting for others.

        That is the forward under DDP, everything under ``no_sync``. It may be entered several times
        in a step. On a GPU it records events in the stream, without synchronizing.
        """
        if self._device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._busy.append((begin, end))
        else:
            began = time.perf_counter()
            yield
            self._busy.append(time.perf_counter() - began)

    def step(self) -> ShareChange | None:
        """End the step on every rank; return the change of shares, the same on every rank, or None.

        Raises:
            RanksOutOfSync: ranks are at different samples or have different shares; on all ranks.
            CollectiveTimeout, CollectiveFailed, GroupBroken: the comparison failed.
        """
        self._steps += 1
        busy, self._busy = self._busy, []
        sampler = self._sampler
        if self._steps > self._warm_up and sampler.current:
            expected = self._speeds.busy(sampler.rank, sampler.current[sampler.rank])
            self._window.append((sum(expected), busy))
        if self._steps <= self._warm_up or (self._steps - self._warm_up) % self._every:
            return None
        return self._compare()

    def _exchange_ratios(self, ratio: float) -> list[float]:
        """Exchange ratios, after checking that all ranks have the same position and shares."""
        sampler = self._sampler
        own = _RankReport(
            ratio,
            sampler.epoch,
            sampler.taken,
            xxhash.xxh3_64_hexdigest(repr(sampler.shares).encode()),
        )
        reports = exchange_values(own, _RankReport, self._group, timeout=self._timeout)
        position_counts = Counter((each.epoch, each.taken, each.shares) for each in reports)
        if len(position_counts) > 1:
            expected_position, _ = position_counts.most_common(1)[0]
            pairs = zip(self._ranks, reports, strict=True)
            mismatched = tuple(
                rank
                for rank, each in pairs
                if (each.epoch, each.taken, each.shares) != expected_position
            )
            why = (
                f"{describe_ranks(mismatched)} continued from another sample, or with other "
                "shares, than most"
            )
            raise RanksOutOfSync("HeterogeneousSampler", odd=mismatched, why=why)
        return [each.ratio for each in reports]

    def _compare(self) -> ShareChange | None:
        ratios = [_seconds(busy) / expected for expected, busy in self._window if busy]
        if not ratios and self._baseline is None:
            _log.warning(
                "nothing was measured: wrap this rank's computation in `with balance.busy():`"
            )
        self._window = []
        ratio = statistics.median(ratios) if ratios else 0.0
        first = self._baseline is None
        if self._baseline is None:
            self._baseline = ratio
        relative_ratio = ratio / self._baseline if ratio and self._baseline else 1.0
        reports = self._exchange_ratios(relative_ratio)
        if first:
            return None
        factors = dict(enumerate(reports))
        before = self._sampler.shares
        improvement = find_better_shares(
            self._speeds, before, factors, self._min_gain, self._sync_s
        )
        if improvement is None or improvement.shares == before:
            self._confirmations = 0
            return None
        self._confirmations += 1
        if self._confirmations < self._patience:
            return None
        self._confirmations = 0
        try:
            self._sampler.reallot(improvement.shares)
        except InvalidValue as error:  # the end of the epoch cannot be divided by them
            _log.warning("the batch was not redistributed: %s", error)
            return None
        slower = {rank: round(reports[at], 3) for at, rank in enumerate(self._ranks)}
        change = ShareChange(
            self._sampler.step, before, improvement.shares, slower, improvement.gain
        )
        if self._sampler.rank == 0:
            _log.warning("%s", change)
        return change


class _RankReport(msgspec.Struct, frozen=True):
    """A rank's ratio, and its position and shares, which must be the same on all."""

    ratio: float
    epoch: int
    taken: int
    shares: str


def _seconds(busy: list[float | tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
    """Return their sum; waits for events of the step that just ended."""
    total = 0.0
    for each in busy:
        if isinstance(each, tuple):
            each[1].synchronize()
            total += each[0].elapsed_time(each[1]) / 1e3
        else:
            total += each
    return total
