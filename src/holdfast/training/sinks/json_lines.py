"""A JSON Lines file: ``{"step": 300, "time": 1795286643.7, "metrics": {"eval/loss": 0.25}}``."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.keyword_hints import suggest_keywords


@suggest_keywords
class JsonLines:
    """Append a line per write. JSON has no NaN: ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.

    (As in protobuf's JSON mapping; Python's ``float()`` and pandas read all three.) After a
    restart, steps are written again: the last line of a step counts.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._is_partial = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one complete line; after a partial write, start a new line."""
        values = {
            name: value if math.isfinite(value) else _spell_nonfinite(value)
            for name, value in metrics.items()
        }
        line = msgspec.json.encode({"step": step, "time": time.time(), "metrics": values}) + b"\n"
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
        data = b"\n" * self._is_partial + line
        written = os.write(self._file, data)
        self._is_partial = written > 0 and written < len(data)
        if written < len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes of a line to {self._path}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _spell_nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
