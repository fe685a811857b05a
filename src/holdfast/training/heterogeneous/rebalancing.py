"""Compute whether new shares pay when ranks are slower than measured."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_shares import BatchShares, shares_of
from holdfast.training.heterogeneous.gpu_kinds import RankSpeeds


class BetterShares(msgspec.Struct, frozen=True):
    """Shares with which a step would take ``step_s`` seconds instead of ``now_s``."""

    shares: BatchShares
    now_s: float
    step_s: float

    @property
    def gain(self) -> float:
        """Return the expected speedup of a step."""
        return self.now_s / self.step_s


def find_better_shares(
    speeds: RankSpeeds,
    shares: BatchShares,
    factors: Mapping[int, float],
    min_gain: float,
    sync_s: float = 0.0,
) -> BetterShares | None:
    """Return the best shares if rank r takes ``factors[r]`` times as long as measured.

    None if they gain less than ``min_gain`` (1.1: 10%), or if the current shares were never
    measured.
    """
    slowed = speeds.slowed(factors)
    rounds = max(map(len, shares.sizes)) if len({len(mine) for mine in shares.sizes}) == 1 else 1
    try:
        now_s = slowed.step_s(shares.sizes, shares.sync_point) + sync_s * rounds
        allocation = slowed.allocate(shares.batch, shares.sync_point, sync_s)
    except InvalidValue:
        return None
    if allocation.step_s * min_gain > now_s:
        return None
    return BetterShares(shares_of(allocation), now_s, allocation.step_s)
