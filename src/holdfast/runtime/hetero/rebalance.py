"""New shares where a rank is slower than it was measured to be (a GPU that throttles, a neighbour on its host).

What counts is how long a rank is busy, not how long its steps are: in a step the quick ranks wait for the slow one, so
that all steps are as long. The time between ``with balance.busy():`` and its end is compared with what the measured
speeds make of the same shares; the first check sets what is usual, and from then on the ratio tells who slowed down.
All ranks learn all ratios at the same step, and each works out the same decision from the same numbers.
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

from holdfast.errors import BadValue, OutOfLockstep
from holdfast.plan.rebalancing import better
from holdfast.plan.shares import Shares
from holdfast.plan.speeds import Speeds
from holdfast.report.ranksets import say_ranks
from holdfast.runtime.hetero.sampler import HeterogeneousSampler
from holdfast.runtime.hetero.speeds import device_of
from holdfast.runtime.hetero.telling import everyone, ranks_of

_log = logging.getLogger("holdfast.hetero")


class Change(msgspec.Struct, frozen=True):
    """New shares from the step after ``step`` on, the same on all ranks.

    ``slower``: by global rank, how many times as long it takes as in the beginning; ``gain``: how many times as quick
    steps should be.
    """

    step: int
    before: Shares
    shares: Shares
    slower: dict[int, float]
    gain: float

    def __str__(self) -> str:
        """One sentence: what changed, and why."""
        slow = [f"rank {rank} takes {ratio:.2g} times as long" for rank, ratio in self.slower.items() if ratio > 1.05]
        was, now = ("/".join(str(sum(mine)) for mine in each.sizes) for each in (self.before, self.shares))
        return (
            f"after step {self.step} the batch is dealt out as {now} instead of {was}, which should make steps "
            f"{self.gain:.2f} times as quick: {', '.join(slow) or 'all ranks are as quick as in the beginning'}"
        )


class Rebalancer:
    """Watches how busy this rank is, and deals the batch out anew where that pays; all ranks make one, alike.

    Ranks compare every ``every`` steps, after ``warm_up`` steps that do not count. New shares are taken where ``worth``
    times as quick steps are expected of them at ``patience`` checks in a row, so that a hiccup changes nothing, and
    shares do not swing. ``meet_s``: as for ``Speeds.allot``.

    Each comparison also sees that all ranks are at the same sample with the same shares.

    Raises:
        BadValue: speeds of other ranks than the sampler's shares are for, or of smaller micro-batches, or numbers that
            make no sense.
    """

    def __init__(  # noqa: PLR0913 - settings, each with its name
        self,
        sampler: HeterogeneousSampler,
        speeds: Speeds,
        *,
        every: int = 50,
        worth: float = 1.1,
        patience: int = 2,
        warm_up: int = 3,
        meet_s: float = 0.0,
        device: torch.device | str | None = None,
        group: dist.ProcessGroup | None = None,
        timeout: float | str | None = None,
    ) -> None:
        if every < 1 or patience < 1 or worth < 1 or warm_up < 0:
            raise BadValue("Rebalancer", why=f"every={every}, worth={worth}, patience={patience}, warm_up={warm_up}")
        if len(speeds.ranks) != sampler.shares.world:
            raise BadValue("Rebalancer", why=f"speeds of {len(speeds.ranks)} ranks, and shares of "
                                             f"{sampler.shares.world}")  # fmt: skip
        speeds.step_s(sampler.shares.sizes, sampler.shares.meeting)  # refuses shares that were not measured
        self._sampler, self._speeds, self._meet_s = sampler, speeds, meet_s
        self._every, self._worth, self._patience, self._warm_up = every, worth, patience, warm_up
        self._group, self._timeout, self._device = group, timeout, device_of(device)
        self._ranks = ranks_of(group)
        self._steps = self._wanted = 0
        self._usual: float | None = None
        self._busy: list[float | tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._window: list[tuple[float, list[float | tuple[torch.cuda.Event, torch.cuda.Event]]]] = []

    @contextmanager
    def busy(self) -> Iterator[None]:
        """What this rank computes without waiting for others: the forward under DDP, all of it under ``no_sync``.

        It may be entered several times in a step. On a GPU events are put into the stream, and nothing waits for them.
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

    def step(self) -> Change | None:
        """The step is over, on every rank; what changed, on every rank alike, or None.

        Raises:
            OutOfLockstep: ranks are at different samples or have different shares; on all ranks, it names the odd ones.
            CollectiveTimeout, CollectiveFailed, GroupBroken: the ranks did not come together to compare.
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

    def _tell(self, ratio: float) -> list[float]:
        """All ranks' ratios, where all ranks are at one place with the same shares; else batches would overlap."""
        sampler = self._sampler
        own = _Told(ratio, sampler.epoch, sampler.taken, xxhash.xxh3_64_hexdigest(repr(sampler.shares).encode()))
        told = everyone(own, _Told, self._group, timeout=self._timeout)
        places = Counter((each.epoch, each.taken, each.shares) for each in told)
        if len(places) > 1:
            usual, _ = places.most_common(1)[0]
            pairs = zip(self._ranks, told, strict=True)
            odd = tuple(rank for rank, each in pairs if (each.epoch, each.taken, each.shares) != usual)
            why = f"{say_ranks(odd)} went on from another sample, or with other shares, than most"
            raise OutOfLockstep("HeterogeneousSampler", odd=odd, why=why)
        return [each.ratio for each in told]

    def _compare(self) -> Change | None:
        ratios = [_seconds(busy) / expected for expected, busy in self._window if busy]
        if not ratios and self._usual is None:
            _log.warning("nothing was measured: enter `with balance.busy():` around what this rank computes in a step")
        self._window = []
        ratio = statistics.median(ratios) if ratios else 0.0
        first = self._usual is None
        if self._usual is None:
            self._usual = ratio
        mine = ratio / self._usual if ratio and self._usual else 1.0
        told = self._tell(mine)
        if first:
            return None
        factors = dict(enumerate(told))
        before = self._sampler.shares
        found = better(self._speeds, before, factors, self._worth, self._meet_s)
        if found is None or found.shares == before:
            self._wanted = 0
            return None
        self._wanted += 1
        if self._wanted < self._patience:
            return None
        self._wanted = 0
        try:
            self._sampler.reallot(found.shares)
        except BadValue as error:  # the end of the epoch cannot be dealt out by them
            _log.warning("the batch is not dealt out anew: %s", error)
            return None
        slower = {rank: round(told[at], 3) for at, rank in enumerate(self._ranks)}
        change = Change(self._sampler.step, before, found.shares, slower, found.gain)
        if self._sampler.rank == 0:
            _log.warning("%s", change)
        return change


class _Told(msgspec.Struct, frozen=True):
    """What a rank tells: its ratio, and where it is, which has to be the same on all."""

    ratio: float
    epoch: int
    taken: int
    shares: str


def _seconds(busy: list[float | tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
    """Their sum; events of the step that just ended are waited for."""
    total = 0.0
    for each in busy:
        if isinstance(each, tuple):
            each[1].synchronize()
            total += each[0].elapsed_time(each[1]) / 1e3
        else:
            total += each
    return total
