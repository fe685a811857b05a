"""What all ranks learn together between two steps: the losses of all, and whether the time for a checkpoint has come.

A round is one all-reduce of some kilobytes in a gloo group of the loop's own. With the wait for whoever is last it
costs a millisecond or two, so that where steps are short one round stands for many: as many as keep it under a quarter
of a percent of the time, which rank 0 works out and tells the others in the round before, at most a second's.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

#: Steps that one round may stand for.
MOST_STEPS = 512
#: Part of the time that rounds may cost, and the longest that a rank keeps to itself what it saw.
_SHARE = 0.0025
_LONGEST_S = 1.0
_LIMIT = timedelta(minutes=30)


@dataclass(frozen=True)
class Met:
    """What a round came to: by step the mean over all ranks of its loss, and whether it is time to save (``due``)."""

    losses: dict[int, float]
    due: bool


class Rounds:
    """The rounds of this rank. To be made on all ranks together; without a process group a rank is alone."""

    def __init__(self) -> None:
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        self._group = None if alone else dist.new_group(backend="gloo", timeout=_LIMIT, group_desc="holdfast.loop")
        self._first = not alone and dist.get_rank() == 0
        self._next = 0
        self._last = 0
        self._met = 0, time.monotonic()
        self._cost_s = math.inf

    def begin(self, step: int) -> None:
        """``step`` steps are done; the next of them is the first to be told."""
        self._last, self._next = step, step + 1
        self._met = step, time.monotonic()

    def due(self, step: int) -> bool:
        """Whether the ranks meet after this step."""
        return step >= self._next

    def meet(self, step: int, until: int, losses: dict[int, float], *, save: bool) -> Met:
        """Meet after ``step``, on all ranks, over the ``losses`` up to step ``until``; ``save`` counts of rank 0.

        Raises:
            RuntimeError: torch's, where a rank died.
        """
        steps = range(max(self._last, until - MOST_STEPS) + 1, until + 1)
        self._last = until
        if self._group is None:
            self._next = step + 1
            return Met({each: losses[each] for each in steps if each in losses}, save)
        told = [0.0] * (2 + 2 * MOST_STEPS)
        for place, each in enumerate(steps, 2):
            if each in losses:
                told[place], told[MOST_STEPS + place] = losses[each], 1.0
        if self._first:
            told[:2] = float(save), float(self._pace(step))
        shared = torch.tensor(told, dtype=torch.float64)
        began = time.monotonic()
        dist.all_reduce(shared, group=self._group)
        self._met = step, time.monotonic()
        taken_s = self._met[1] - began
        self._cost_s = taken_s if math.isinf(self._cost_s) else 0.8 * self._cost_s + 0.2 * taken_s
        due, pace, *found = shared.tolist()
        self._next = step + int(pace)
        means = zip(steps, found, found[MOST_STEPS:], strict=False)
        return Met({each: total / count for each, total, count in means if count}, due > 0)

    def _pace(self, step: int) -> int:
        """After how many steps to meet again. The first rounds are at every step: nothing is known yet."""
        if not math.isfinite(self._cost_s):
            return 1
        met, at = self._met
        step_s = max((time.monotonic() - at) / max(1, step - met), 1e-6)
        wanted = math.ceil(self._cost_s / (_SHARE * step_s))
        return max(1, min(wanted, int(_LONGEST_S / step_s), MOST_STEPS))
