"""Compiles the packing of many tensors in C++ (some 15 s, once): ``python -m holdfast.runtime.packing``.

``holdfast run`` does so before the job starts, which is why this stands outside of ``comm``, whose import takes longer.
Nothing is compiled while a job trains: where the compiled part is not there, torch's own operators pack, some 0.5 ms
slower for 512 tensors.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import torch

from holdfast import compiled
from holdfast.runtime import extension

SOURCE = Path(__file__).parent / "comm" / "native" / "packing.cpp"

_log = logging.getLogger("holdfast.comm")


def place() -> Path:
    """Where the compiled part lies, or will lie."""
    return extension.cached("packing", [SOURCE])


def ensure_built(progress: Callable[[str], None]) -> Path | None:
    """The compiled part, built first where needed; None where it cannot be (``progress`` is told why)."""
    target = place()
    if target.is_file():
        return target
    if compiled.compiler() is not None:
        progress(f"compiling the packing of tensors for torch {torch.__version__} (once, some 15 s) …")
    said: list[str] = []
    built = extension.build(target, SOURCE, said.append, "torch_python")
    if built is None:
        progress(f"{said[0]}: tensors are packed by torch, some 0.5 ms slower for 512 of them.")
    return built


@cache
def loaded() -> ModuleType | None:
    """The compiled part, where an earlier :func:`ensure_built` left it; None without it."""
    target = place()
    if not target.is_file():
        _log.debug("tensors are packed by torch; `python -m %s` compiles a faster way", __spec__.name)
        return None
    loader = ExtensionFileLoader("packing", str(target))
    try:
        made = module_from_spec(ModuleSpec("packing", loader, origin=str(target)))
        loader.exec_module(made)
    except ImportError as error:
        _log.warning("the compiled packing of tensors does not load: %s", error)
        return None
    return made


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - its whole purpose
