"""The packing of many tensors in C++, compiled once (about 15 s).

`holdfast run` compiles it in the background for later starts (``compiled_extensions``); ``python -m
holdfast.training.packing_extension`` compiles it now. Without it, torch's own operators pack the
tensors, about 0.5 ms slower for 512 tensors. Outside ``collectives``, whose import takes longer.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import torch

from holdfast.recorder.torch_extension import Progress, TorchExtension

SOURCE = Path(__file__).parent / "native" / "packing.cpp"
TEST_LIMIT_S = 120

_log = logging.getLogger("holdfast.comm")


def packing() -> TorchExtension:
    """Return the extension that packs tensors."""
    fallback = "torch packs tensors instead, about 0.5 ms slower for 512 of them"
    return TorchExtension(
        "packing",
        "tensor-packing extension",
        fallback,
        SOURCE,
        _test_in_process,
        ("torch_python",),
    )


def extension_path() -> Path:
    """Return the path of the extension in the cache, whether or not it exists."""
    return packing().cached


def ensure_built(progress: Progress) -> Path | None:
    """Return the path of the extension, after compiling it if needed; None if that fails.

    ``progress`` receives what is done and why it failed.
    """
    return packing().ensure_built(progress)


@cache
def load() -> ModuleType | None:
    """Return the extension if it is in the cache, else None."""
    target = extension_path()
    if not target.is_file():
        _log.debug("torch packs tensors; compile a faster packing: python -m %s", __spec__.name)
        return None
    try:
        return _load_library(target)
    except ImportError as error:
        _log.warning("cannot load the tensor-packing extension %s: %s", target, error)
        return None


def _load_library(library: Path) -> ModuleType:
    loader = ExtensionFileLoader("packing", str(library))
    module = module_from_spec(ModuleSpec("packing", loader, origin=str(library)))
    loader.exec_module(module)
    return module


def _test_command(library: Path) -> list[str]:
    """Return the command that tests the library, also if this module itself is run by ``-m``."""
    return [sys.executable, "-m", __spec__.name, str(library)]


def _test_in_process(library: Path) -> str | None:
    """Return why the library does not pack; None on success. A process tests it: it may crash."""
    done = subprocess.run(
        _test_command(library),
        capture_output=True,
        text=True,
        timeout=TEST_LIMIT_S,
        check=False,
    )
    if done.returncode == 0:
        return None
    return next(iter(done.stderr.splitlines()[-1:]), f"exit status {done.returncode}")


def _test_library(library: Path) -> None:
    """Pack and unpack tensors. Raises what fails."""
    module = _load_library(library)
    tensors = [torch.ones(2, 3), torch.arange(4), torch.full((3,), 2.0)]
    buffers, _ = module.pack(tensors)
    for buffer in buffers:
        buffer.add_(1)
    module.unpack(tensors, buffers)
    totals = [float(tensor.sum()) for tensor in tensors]
    if totals != [12.0, 10.0, 9.0]:
        raise ValueError(f"sums are {totals} instead of [12, 10, 9]")


if __name__ == "__main__":
    if sys.argv[1:]:
        _test_library(Path(sys.argv[1]))
    else:
        print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - its purpose
