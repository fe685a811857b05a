"""Watches the loss: NaN, Inf, and a jump that does not come back. Pure but for reading tensors.

What is judged is the mean over all ranks, which all ranks have alike, so that all come to the same answer.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

import torch

#: Steps whose losses are the usual ones, and how many of them there must be before anything is called a jump.
WINDOW, ENOUGH = 128, 64
#: A jump is as many steps in a row: one bad batch is no reason to go back.
IN_A_ROW = 3
#: Of a normal distribution: the standard deviation in median absolute deviations.
_SIGMA = 1.4826


@dataclass(frozen=True)
class Bad:
    """What is wrong from ``first`` to ``last``: ``what`` is ``nan``, ``inf`` or ``spike``; ``usual`` is the median."""

    what: str
    first: int
    last: int
    value: float
    usual: float | None


class Losses:
    """The losses of recent steps. ``spike`` is how many deviations above the median make a jump; None for never.

    The deviation is the median absolute one, or a twentieth of the median where the curve is smoother than that.
    """

    def __init__(self, spike: float | None) -> None:
        self._spike = spike
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self._high: list[tuple[int, float]] = []

    def add(self, step: int, loss: float) -> Bad | None:
        """Judge the mean loss of ``step``."""
        usual = statistics.median(self._usual) if self._usual else None
        if not math.isfinite(loss):
            return Bad("nan" if math.isnan(loss) else "inf", step, step, loss, usual)
        if usual is None or self._spike is None or not self._jumped(loss, usual, self._spike):
            self._usual.extend(value for _, value in self._high)
            self._high.clear()
            self._usual.append(loss)
            return None
        self._high.append((step, loss))
        if len(self._high) < IN_A_ROW:
            return None
        return Bad("spike", self._high[0][0], step, max(value for _, value in self._high), usual)

    def _jumped(self, loss: float, usual: float, spike: float) -> bool:
        if len(self._usual) < ENOUGH or loss <= usual:
            return False
        deviation = _SIGMA * statistics.median(abs(value - usual) for value in self._usual)
        return loss - usual > spike * max(deviation, 0.05 * abs(usual))


class Reported:
    """Losses of this rank that nobody has met over yet, by step. Those on a device are read as late as can be."""

    def __init__(self) -> None:
        self._values: dict[int, float | torch.Tensor] = {}
        self._events: dict[int, torch.Event] = {}

    def put(self, step: int, loss: float | torch.Tensor) -> None:
        """Keep the loss of a step; the copy of one on a device is begun, and not waited for."""
        if not isinstance(loss, torch.Tensor):
            self._values[step] = float(loss)
        elif loss.device.type == "cpu":
            self._values[step] = loss.item() if loss.numel() == 1 else float(loss.detach().double().mean())
        else:
            copy = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._values[step] = copy.copy_(loss.detach().float().mean(), non_blocking=True)
            self._events[step] = torch.Event(loss.device)
            self._events[step].record()

    def until(self, step: int, *, waits: bool) -> int:
        """Up to which step the losses are told: of a device the one before, whose copy is done, unless one waits."""
        return step - 1 if not waits and isinstance(self._values.get(step), torch.Tensor) else step

    def take(self, until: int) -> dict[int, float]:
        """The losses up to step ``until``, which are forgotten."""
        steps = [step for step in self._values if step <= until]
        for step in steps:
            if (event := self._events.pop(step, None)) is not None:
                event.synchronize()
        return {step: float(self._values.pop(step)) for step in steps}
