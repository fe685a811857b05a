"""MLflow, through its client (``mlflow-skinny`` suffices)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import MissingExtra
from holdfast.core.keyword_hints import suggest_keywords

#: MLflow's maximum number of metrics per call.
_MAX_BATCH = 1000
_INVALID_NAME_CHARACTERS = re.compile(r"[^\w\-. /:]")


@suggest_keywords
class MLflow:
    """Log to a run of ``experiment`` at ``tracking_uri``, or to the existing run ``run_id``.

    MLflow 3.17 accepts a folder (``file:///…``) only with MLFLOW_ALLOW_FILE_STORE=true; its
    default, SQLite, needs the full mlflow package.

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "holdfast",
        run_name: str | None = None,
        run_id: str | None = None,
    ) -> None:
        try:
            from mlflow.entities import Metric  # noqa: PLC0415 - an extra
            from mlflow.tracking import MlflowClient  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtra(
                "mlflow", next_step="install it with: pip install 'holdfast[mlflow]'"
            ) from error
        self._open: Callable[[], Any] = lambda: MlflowClient(tracking_uri)
        self._metric = Metric
        self._experiment, self._run_name, self._run_id, self._owns_run = (
            experiment,
            run_name,
            run_id,
            run_id is None,
        )
        self._client: Any = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log all values in one call; characters invalid in MLflow names become ``_``."""
        if self._client is None:
            self._client = self._open()
        if self._run_id is None:
            self._run_id = self._create_run()
        now = int(time.time() * 1000)
        rows = [
            self._metric(_INVALID_NAME_CHARACTERS.sub("_", name), value, now, step)
            for name, value in metrics.items()
        ]
        for first in range(0, len(rows), _MAX_BATCH):
            self._client.log_batch(self._run_id, metrics=rows[first : first + _MAX_BATCH])

    def _create_run(self) -> str:
        existing = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            existing.experiment_id
            if existing is not None
            else self._client.create_experiment(self._experiment)
        )
        return str(self._client.create_run(experiment, run_name=self._run_name).info.run_id)

    def close(self) -> None:
        """Terminate the run, if this sink created it."""
        if self._client is not None and self._run_id is not None and self._owns_run:
            self._client.set_terminated(self._run_id)
