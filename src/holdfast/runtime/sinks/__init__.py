"""Where metrics go: Weights & Biases, TensorBoard, MLflow, a file of JSON lines, or whatever has these two methods.

May stand here: one file a sink, and the guard that keeps their failures away from training (``guard.py``). A sink
imports its client when it is made, so that only those need it who use it; it opens it at the first write.
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
    "guarded": "guard",
}


class Sink(Protocol):
    """Takes metrics. Both methods may raise, and may take long: :func:`guarded` keeps that away from training."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the values that belong to ``step``; steps need not grow. What is not known is not in ``metrics``."""
        ...

    def close(self) -> None:
        """Let go of everything, once all is written. Nothing is written afterwards."""
        ...


def __getattr__(name: str) -> Any:
    """Find a sink in its file on first use."""
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(sorted(__all__))}"
        raise AttributeError(message)
    found = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the lazy names too."""
    return sorted({*globals(), *_LAZY})
