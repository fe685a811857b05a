"""Periodically judges whether a rank or a link is slower than the others; reports each rarely."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.findings import Finding, Subject, Verdict
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import slow_links, straggler
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

    def judge(self, table: JobSummary, health: Sequence[Finding] = ()) -> Verdict | None:
        """Return a verdict if one is due and a rank is slow; ``health`` may explain it."""
        if not self._window_s or table.time < self._next:
            return None
        self._next = table.time + self._window_s / SLICES
        verdict = straggler.judge(table.ranks, table.world_size, health)
        if verdict is None or verdict.root is None:
            return None
        rank = verdict.root.subject.rank
        if table.time < self._reported_at.get(rank, 0.0) + self._repeat_s:
            return None
        self._reported_at[rank] = table.time
        return verdict


class ExtraWorkWatch:
    """Reports a rank for whose regular extra work the others wait. ``window_s`` 0 disables it."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._next = 0.0
        self._reported: set[int | None] = set()

    def judge(self, table: JobSummary) -> Finding | None:
        """Return a note if one is due, once per rank."""
        if not self._window_s or table.time < self._next:
            return None
        self._next = table.time + self._window_s
        finding = straggler.find_extra_work(table.ranks)
        if finding is None or finding.subject.rank in self._reported:
            return None
        self._reported.add(finding.subject.rank)
        return finding


class SlowLinkWatch:
    """Follows the links of one generation. ``window_s`` is the measured time; 0 disables it."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._next = 0.0
        self._suspected: Subject | None = None
        self._reported_at: dict[Subject, float] = {}

    def judge(self, table: JobSummary) -> Finding | None:
        """Return a finding if one is due, for a link that is slow in two windows in a row."""
        if not self._window_s or table.time < self._next:
            return None
        self._next = table.time + self._window_s
        hosts = {state.rank: state.host for state in table.ranks}
        finding = slow_links.judge(table.timings, table.groups, hosts)
        before = self._suspected
        self._suspected = finding.subject if finding is not None else None
        if finding is None or finding.subject != before:
            return None
        if table.time < self._reported_at.get(finding.subject, -REPEAT_S) + REPEAT_S:
            return None
        self._reported_at[finding.subject] = table.time
        return finding
