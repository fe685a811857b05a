"""Share between steps, over all ranks: the losses, and whether a checkpoint is due.

A sync is one all-reduce of a few kilobytes in a gloo group of the loop. Including the wait for the
slowest rank it takes a millisecond or two. With short steps one sync covers several, so that it
costs less than a quarter of a percent of the time, at most one second's worth; rank 0 computes the
interval and shares it in the sync before.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

#: Maximum steps per sync.
MAX_STEPS = 512
#: Maximum share of the time spent on syncs, and the maximum interval in seconds.
_MAX_OVERHEAD = 0.0025
_MAX_INTERVAL_S = 1.0
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class SyncResult:
    """The outcome of one sync.

    ``losses``: by step, the mean over all ranks; ``due``: whether to save now.
    """

    losses: dict[int, float]
    due: bool


class StepSync:
    """The syncs of this rank; create it on all ranks together. Without a group it is local."""

    def __init__(self) -> None:
        is_single = not (
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        )
        self._group = (
            None
            if is_single
            else dist.new_group(backend="gloo", timeout=_TIMEOUT, group_desc="holdfast.loop")
        )
        self._is_rank_zero = not is_single and dist.get_rank() == 0
        self._next_sync = 0
        self._last_shared = 0
        self._synced = 0, time.monotonic()
        self._cost_s = math.inf

    def begin(self, step: int) -> None:
        """Start after ``step`` completed steps; the next one is shared."""
        self._last_shared, self._next_sync = step, step + 1
        self._synced = step, time.monotonic()

    def is_due(self, step: int) -> bool:
        """Return whether the ranks sync after this step."""
        return step >= self._next_sync

    def sync(self, step: int, last: int, losses: dict[int, float], *, save: bool) -> SyncResult:
        """Share the ``losses`` up to step ``last``; called after ``step`` on all ranks.

        ``save`` counts only on rank 0.

        Raises:
            RuntimeError: torch's, if a rank died.
        """
        steps = range(max(self._last_shared, last - MAX_STEPS) + 1, last + 1)
        self._last_shared = last
        if self._group is None:
            self._next_sync = step + 1
            return SyncResult(
                {number: losses[number] for number in steps if number in losses}, save
            )
        buffer = [0.0] * (2 + 2 * MAX_STEPS)
        for position, number in enumerate(steps, 2):
            if number in losses:
                buffer[position], buffer[MAX_STEPS + position] = losses[number], 1.0
        if self._is_rank_zero:
            buffer[:2] = float(save), float(self._interval(step))
        tensor = torch.tensor(buffer, dtype=torch.float64)
        began = time.monotonic()
        dist.all_reduce(tensor, group=self._group)
        self._synced = step, time.monotonic()
        elapsed_s = self._synced[1] - began
        self._cost_s = (
            elapsed_s if math.isinf(self._cost_s) else 0.8 * self._cost_s + 0.2 * elapsed_s
        )
        due, interval, *sums = tensor.tolist()
        self._next_sync = step + int(interval)
        means = zip(steps, sums, sums[MAX_STEPS:], strict=False)
        return SyncResult(
            {number: total / count for number, total, count in means if count}, due > 0
        )

    def _interval(self, step: int) -> int:
        """Return the steps until the next sync; 1 until the cost is known."""
        if not math.isfinite(self._cost_s):
            return 1
        synced_step, synced_at = self._synced
        step_s = max((time.monotonic() - synced_at) / max(1, step - synced_step), 1e-6)
        needed = math.ceil(self._cost_s / (_MAX_OVERHEAD * step_s))
        return max(1, min(needed, int(_MAX_INTERVAL_S / step_s), MAX_STEPS))
