"""Compile the packing of many tensors in C++ (about 15 s, once).

Run ``python -m holdfast.training.packing_extension``, or `holdfast run`, which does so before the
job starts. Nothing is compiled while a job trains: without the extension, torch's own operators
pack the tensors, about 0.5 ms slower for 512 tensors. Outside ``collectives``, whose import takes
longer.
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

from holdfast.core import native_extension
from holdfast.recorder import torch_extension

SOURCE = Path(__file__).parent / "native" / "packing.cpp"

_log = logging.getLogger("holdfast.comm")


def extension_path() -> Path:
    """Return the path of the compiled extension, whether or not it exists."""
    return torch_extension.cached_extension("packing", [SOURCE])


def ensure_built(progress: Callable[[str], None]) -> Path | None:
    """Return the path of the extension, after compiling it if needed; None if that fails.

    ``progress`` receives what is done and why it failed.
    """
    target = extension_path()
    if target.is_file():
        return target
    if native_extension.find_compiler() is not None:
        progress(
            f"Compiling tensor-packing extension for torch {torch.__version__} "
            "(one-time, about 15 s) …"
        )
    errors: list[str] = []
    built = torch_extension.build_torch_extension(target, SOURCE, errors.append, "torch_python")
    if built is None:
        progress(f"{errors[0]}: torch packs tensors instead, about 0.5 ms slower for 512 of them.")
    return built


@cache
def load() -> ModuleType | None:
    """Return the extension if :func:`ensure_built` has compiled it earlier, else None."""
    target = extension_path()
    if not target.is_file():
        _log.debug("torch packs tensors; compile a faster packing: python -m %s", __spec__.name)
        return None
    loader = ExtensionFileLoader("packing", str(target))
    try:
        module = module_from_spec(ModuleSpec("packing", loader, origin=str(target)))
        loader.exec_module(module)
    except ImportError as error:
        _log.warning("cannot load the tensor-packing extension %s: %s", target, error)
        return None
    return module


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - its purpose
