"""Compiles the C++ recorder for the torch that is installed.

It takes about half a minute. Where it cannot be compiled the recorder in Python takes over, whose price
docs/benchmarks.md tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast import compiled
from holdfast.runtime import extension

SOURCES = Path(__file__).parent / "native"


def ensure_built(progress: Callable[[str], None]) -> Path | None:
    """The compiled recorder, built first where needed; None where it cannot be (``progress`` is told why)."""
    target = extension.cached("recorder", SOURCES.iterdir())
    if target.is_file():
        return target
    if compiled.compiler() is not None:
        progress(f"compiling the recorder for torch {torch.__version__} (once, about half a minute) …")
    said: list[str] = []
    built = extension.build(target, SOURCES / "recorder.cpp", said.append)
    if built is None:
        progress(f"{said[0]}: the recorder in Python is used, as dear as TORCH_DISTRIBUTED_DEBUG=DETAIL.")
    return built


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - its whole purpose
