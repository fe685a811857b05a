"""Whether a batch is better dealt out anew, when ranks are not as quick as they were measured to be."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.shares import Shares, shares_of
from holdfast.plan.speeds import Speeds


class Better(msgspec.Struct, frozen=True):
    """Shares with which a step would take ``step_s`` seconds instead of ``now_s``."""

    shares: Shares
    now_s: float
    step_s: float

    @property
    def gain(self) -> float:
        """How many times as quick the steps would be."""
        return self.now_s / self.step_s


def better(
    speeds: Speeds, shares: Shares, factors: Mapping[int, float], worth: float, meet_s: float = 0.0
) -> Better | None:
    """The best shares where rank r takes ``factors[r]`` times as long as measured.

    None where they gain less than ``worth`` (1.1: a tenth), or where ranks have shares now that were never measured.
    """
    slowed = speeds.slowed(factors)
    rounds = max(map(len, shares.sizes)) if len({len(mine) for mine in shares.sizes}) == 1 else 1
    try:
        now_s = slowed.step_s(shares.sizes, shares.meeting) + meet_s * rounds
        found = slowed.allot(shares.batch, shares.meeting, meet_s)
    except BadValue:
        return None
    if found.step_s * worth > now_s:
        return None
    return Better(shares_of(found), now_s, found.step_s)
