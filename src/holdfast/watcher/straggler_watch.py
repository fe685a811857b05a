"""Periodically judges whether a rank is slower than the others, and reports each rank rarely."""

from __future__ import annotations

from holdfast.core.findings import Verdict
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import straggler
from holdfast.watcher.wait_times import SLICES

#: Minimum time between two reports of the same rank.
REPEAT_S = 3600.0


class StragglerWatch:
    """Follows one generation. ``window_s`` is the measured time window; 0 disables it.

    ``warns``: a rank that is still slow after one more window is reported again, because its host
    is then excluded.
    """

    def __init__(self, window_s: float, *, warns: bool) -> None:
        self._window_s = window_s
        self._repeat_s = window_s * (SLICES + 2) / SLICES if warns else REPEAT_S
        self._next = 0.0
        self._reported_at: dict[int | None, float] = {}

    def judge(self, table: JobSummary) -> Verdict | None:
        """Return a verdict if one is due and a rank is slow."""
        if not self._window_s or table.time < self._next:
            return None
        self._next = table.time + self._window_s / SLICES
        verdict = straggler.judge(table.ranks, table.world_size)
        if verdict is None or verdict.root is None:
            return None
        rank = verdict.root.subject.rank
        if table.time < self._reported_at.get(rank, 0.0) + self._repeat_s:
            return None
        self._reported_at[rank] = table.time
        return verdict
