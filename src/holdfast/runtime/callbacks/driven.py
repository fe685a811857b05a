"""The hooks of a loop that belongs to a framework, which counts the steps and writes the checkpoints itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.runtime import recorder
from holdfast.runtime.checkpoint import emergency
from holdfast.runtime.loop.hooks import SPIKE, Hooks


class Driven(Hooks):
    """``save`` is called on all ranks when it is time, ``leave`` when the scheduler has warned and all is saved.

    ``every`` is a time, ``every_steps`` a number of steps; None for never.
    """

    def __init__(
        self, save: Callable[[], None], leave: Callable[[], None] = emergency.leave, *,
        every: str | float | None = None, every_steps: int | None = None, spike: float | None = SPIKE,
    ) -> None:  # fmt: skip
        super().__init__(None, spike=spike)
        self._do_save, self._do_leave = save, leave
        self._every_s = None if every is None else recorder.seconds(every)
        self._every_steps = every_steps
        self._listens = True
        emergency.listen()

    def start(self, step: int) -> None:
        """Training begins, or goes on, after ``step`` steps."""
        self.step = step
        self.resume()

    def save(self, *, wait: bool = False) -> None:  # noqa: ARG002 - the frameworks write while one waits
        """Have the framework save."""
        if self._saved != self.step:
            self._do_save()
            self.was_saved()

    def was_saved(self) -> None:
        """A checkpoint of this step was written, whoever asked for it."""
        self._saved, self._saved_at = self.step, time.monotonic()

    def judge(self, loss: float) -> None:
        """Look at a loss of this step that all ranks have alike, so that they need not meet over it.

        Raises:
            LossNotFinite, LossSpike: it is no good.
        """
        self._judge(self.step, loss, loss)

    def _leave(self) -> None:
        self._do_leave()

    def finish(self) -> None:
        """Training is over."""
        self._meet(waits=True)
        emergency.stop()
