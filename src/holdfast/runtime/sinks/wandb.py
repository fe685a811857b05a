"""Weights & Biases, through its own client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import MissingExtra

#: The column that holds the step: W&B's own may only grow, and what was evaluated on the side comes late.
STEP = "step"


class WandB:
    """Logs to a run that ``wandb.init(**options)`` makes at the first write, or to ``run`` where there is one already.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        try:
            import wandb  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtra("wandb", next_step="install it with: pip install 'holdfast[wandb]'") from error
        self._init: Callable[[], Any] = lambda: wandb.init(**options)
        self._run, self._is_ours, self._defined = run, run is None, False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row, with its step in the column ``step``, over which the values are drawn."""
        if self._run is None:
            self._run = self._init()
        if not self._defined:
            self._run.define_metric(STEP)
            self._run.define_metric("*", step_metric=STEP)
            self._defined = True
        self._run.log({**metrics, STEP: step})

    def close(self) -> None:
        """Finish the run, where it is ours."""
        if self._run is not None and self._is_ours:
            self._run.finish()
