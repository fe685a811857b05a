"""Weights & Biases, through its client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import MissingExtra
from holdfast.core.keyword_hints import suggest_keywords

#: The step column: W&B's own step may only grow, but background evaluations arrive late.
STEP_COLUMN = "step"


@suggest_keywords
class WandB:
    """Log to a run created by ``wandb.init(**options)`` at the first write, or to ``run``.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        try:
            import wandb  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtra(
                "wandb", next_step="install it with: pip install 'holdfast[wandb]'"
            ) from error
        self._init: Callable[[], Any] = lambda: wandb.init(**options)
        self._run, self._owns_run, self._defined = run, run is None, False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row with its step in the column ``step``, the x axis of all metrics."""
        if self._run is None:
            self._run = self._init()
        if not self._defined:
            self._run.define_metric(STEP_COLUMN)
            self._run.define_metric("*", step_metric=STEP_COLUMN)
            self._defined = True
        self._run.log({**metrics, STEP_COLUMN: step})

    def close(self) -> None:
        """Finish the run, if this sink created it."""
        if self._run is not None and self._owns_run:
            self._run.finish()
