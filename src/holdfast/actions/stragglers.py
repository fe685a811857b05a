"""Asks now and then whether a rank is slower than the others, and says the same thing seldom."""

from __future__ import annotations

from holdfast.facts.node import Summary
from holdfast.facts.waiting import SLICES
from holdfast.findings import Verdict
from holdfast.rules import straggler

#: The same rank is named again after so long; sooner where a second warning has consequences.
AGAIN_S = 3600.0


class Stragglers:
    """Follows one generation. ``window_s`` is the time that is looked at, 0 for never.

    ``warns``: after one more window a rank that is still slow is named again, because it is then left out.
    """

    def __init__(self, window_s: float, *, warns: bool) -> None:
        self._window_s = window_s
        self._again_s = window_s * (SLICES + 2) / SLICES if warns else AGAIN_S
        self._next = 0.0
        self._named: dict[int | None, float] = {}

    def consider(self, table: Summary) -> Verdict | None:
        """The verdict, where it is time for one."""
        if not self._window_s or table.time < self._next:
            return None
        self._next = table.time + self._window_s / SLICES
        verdict = straggler.judge(table.ranks, table.world_size)
        if verdict is None or verdict.root is None:
            return None
        rank = verdict.root.subject.rank
        if table.time < self._named.get(rank, 0.0) + self._again_s:
            return None
        self._named[rank] = table.time
        return verdict
