"""A file of JSON lines: ``{"step": 300, "time": 1795286643.7, "metrics": {"eval/loss": 0.25}}``, appended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec


class JsonLines:
    """Appends a line for each write. JSON has no NaN: it stands as ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``.

    (As in protobuf's mapping to JSON; Python's ``float()`` and pandas read all three.) After a restart, steps that were
    written before come again: the last line of a step counts.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._torn = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line, whole; after one that the disk took in part only, on a line of its own."""
        values = {name: value if math.isfinite(value) else _word(value) for name, value in metrics.items()}
        line = msgspec.json.encode({"step": step, "time": time.time(), "metrics": values}) + b"\n"
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        data = b"\n" * self._torn + line
        done = os.write(self._file, data)
        self._torn = done > 0 and done < len(data)
        if done < len(data):
            raise OSError(f"the disk took {done} of {len(data)} bytes of a line in {self._path}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
