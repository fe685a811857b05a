"""Log metrics to Weights & Biases, TensorBoard, MLflow, a JSON Lines file, or a custom sink.

One module per sink; ``background_writer`` isolates their failures from training. A sink imports its
client when it is created, and connects at the first write.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

__all__ = ["JsonLines", "MLflow", "Sink", "TensorBoard", "WandB", "guarded"]

_LAZY = {
    "JsonLines": "json_lines",
    "MLflow": "mlflow",
    "TensorBoard": "tensorboard",
    "WandB": "wandb",
    "guarded": "background_writer",
}


class Sink(Protocol):
    """Receives metrics. Methods may raise or block: :func:`guarded` isolates training from that."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the values of ``step``; steps need not increase. Unknown values are absent."""
        ...

    def close(self) -> None:
        """Release all resources; no write follows."""
        ...


def __getattr__(name: str) -> Any:
    """Import a sink on first use."""
    if name not in _LAZY:
        message = (
            f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(sorted(__all__))}"
        )
        raise AttributeError(message)
    sink = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = sink
    return sink


def __dir__() -> list[str]:
    """List the lazy names too."""
    return sorted({*globals(), *_LAZY})
