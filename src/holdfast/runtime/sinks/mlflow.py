"""MLflow, through its own client (``mlflow-skinny`` is enough)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import MissingExtra

#: MLflow takes no more at once.
_BATCH = 1000
_NOT_IN_NAMES = re.compile(r"[^\w\-. /:]")


class MLflow:
    """Logs to a run of ``experiment`` at ``tracking_uri``, or to ``run_id`` where there is one already.

    MLflow 3.17 takes a folder (``file:///…``) only where MLFLOW_ALLOW_FILE_STORE=true is set; it wants SQLite there,
    which needs the whole of MLflow.

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(
        self, tracking_uri: str | None = None, *, experiment: str = "holdfast", run_name: str | None = None,
        run_id: str | None = None,
    ) -> None:  # fmt: skip
        try:
            from mlflow.entities import Metric  # noqa: PLC0415 - an extra
            from mlflow.tracking import MlflowClient  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtra("mlflow", next_step="install it with: pip install 'holdfast[mlflow]'") from error
        self._open: Callable[[], Any] = lambda: MlflowClient(tracking_uri)
        self._metric = Metric
        self._experiment, self._run_name, self._run_id, self._is_ours = experiment, run_name, run_id, run_id is None
        self._client: Any = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log all values at once; characters that MLflow has not in names become ``_``."""
        if self._client is None:
            self._client = self._open()
        if self._run_id is None:
            self._run_id = self._begin()
        now = int(time.time() * 1000)
        rows = [self._metric(_NOT_IN_NAMES.sub("_", name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(rows), _BATCH):
            self._client.log_batch(self._run_id, metrics=rows[first : first + _BATCH])

    def _begin(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        return str(self._client.create_run(experiment, run_name=self._run_name).info.run_id)

    def close(self) -> None:
        """Say that the run has ended, where it is ours."""
        if self._client is not None and self._run_id is not None and self._is_ours:
            self._client.set_terminated(self._run_id)
