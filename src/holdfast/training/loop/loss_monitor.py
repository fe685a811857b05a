"""Detect NaN, Inf and persistent spikes of the loss. Pure, except for reading tensors.

The input is the mean over all ranks, which is the same on all of them, and so is the outcome.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

import torch

#: Steps in the reference window, and how many it needs before a spike can be detected.
WINDOW, MIN_HISTORY = 128, 64
#: Consecutive high steps that make a spike: one bad batch does not justify a rollback.
CONSECUTIVE = 3
#: Converts the median absolute deviation to a standard deviation (normal distribution).
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class LossAnomaly:
    """An anomaly from step ``first`` to ``last``.

    ``what`` is ``nan``, ``inf`` or ``spike``; ``usual`` is the median of the steps before.
    """

    what: str
    first: int
    last: int
    value: float
    usual: float | None


class LossMonitor:
    """The losses of recent steps.

    ``spike`` is the number of deviations above the median that make a spike; None disables it. The
    deviation is the median absolute one, or 5% of the median if the curve is smoother.
    """

    def __init__(self, spike: float | None) -> None:
        self._spike = spike
        self._history: deque[float] = deque(maxlen=WINDOW)
        self._spike_candidates: list[tuple[int, float]] = []

    def add(self, step: int, loss: float) -> LossAnomaly | None:
        """Check the mean loss of ``step``; return an anomaly or None."""
        usual = statistics.median(self._history) if self._history else None
        if not math.isfinite(loss):
            return LossAnomaly("nan" if math.isnan(loss) else "inf", step, step, loss, usual)
        if usual is None or self._spike is None or not self._is_spike(loss, usual, self._spike):
            self._history.extend(value for _, value in self._spike_candidates)
            self._spike_candidates.clear()
            self._history.append(loss)
            return None
        self._spike_candidates.append((step, loss))
        if len(self._spike_candidates) < CONSECUTIVE:
            return None
        return LossAnomaly(
            "spike",
            self._spike_candidates[0][0],
            step,
            max(value for _, value in self._spike_candidates),
            usual,
        )

    def _is_spike(self, loss: float, usual: float, spike: float) -> bool:
        if len(self._history) < MIN_HISTORY or loss <= usual:
            return False
        deviation = _MAD_TO_SIGMA * statistics.median(abs(value - usual) for value in self._history)
        return loss - usual > spike * max(deviation, 0.05 * abs(usual))


class PendingLosses:
    """Losses of this rank not yet shared, by step; device values are read late."""

    def __init__(self) -> None:
        self._values: dict[int, float | torch.Tensor] = {}
        self._events: dict[int, torch.Event] = {}

    def put(self, step: int, loss: float | torch.Tensor) -> None:
        """Store the loss of a step; a device value is copied asynchronously."""
        if not isinstance(loss, torch.Tensor):
            self._values[step] = float(loss)
        elif loss.device.type == "cpu":
            self._values[step] = (
                loss.item() if loss.numel() == 1 else float(loss.detach().double().mean())
            )
        else:
            copy = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._values[step] = copy.copy_(loss.detach().float().mean(), non_blocking=True)
            self._events[step] = torch.Event(loss.device)
            self._events[step].record()

    def last_shareable(self, step: int, *, waits: bool) -> int:
        """Return the last step to share: of a device the one before, whose copy is complete.

        With ``waits``, this step.
        """
        return step - 1 if not waits and isinstance(self._values.get(step), torch.Tensor) else step

    def take(self, until: int) -> dict[int, float]:
        """Remove and return the losses up to step ``until``."""
        steps = [step for step in self._values if step <= until]
        for step in steps:
            if (event := self._events.pop(step, None)) is not None:
                event.synchronize()
        return {step: float(self._values.pop(step)) for step in steps}
