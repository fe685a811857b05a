"""Classifies stack frames: user code, torch, holdfast, the standard library, installed packages."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from holdfast.core.rank_table import SourceLine, ThreadStack

_HOLDFAST = str(Path(__file__).resolve().parents[2]) + "/"
_STANDARD = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_PACKAGES = re.compile(r"/(site|dist)-packages/")
#: The standard library of another interpreter than the watcher's.
_ANY_STANDARD = re.compile(r"/lib(64)?/python3(\.\d+)?t?/")
#: torch as installed, and as built in a checkout, without a packages folder in the path.
_TORCH = re.compile(
    r"/(site|dist)-packages/(torch|functorch|torchgen|triton)/"
    r"|/torch/(_\w+|autograd|cuda|distributed|fx|jit|multiprocessing|nn|optim|profiler|utils|xpu)(/|\.py$)"
    r"|/torch/(functional|library|serialization|storage)\.py$"
)


def is_installed(file: str) -> bool:
    """Return whether the file is below site-packages or dist-packages."""
    return bool(_PACKAGES.search(file))


def is_library_frame(file: str) -> bool:
    """Return whether it is torch, holdfast, the standard library or ``<frozen importlib>``."""
    if not file or file.startswith("<"):
        return True
    if file.startswith(_HOLDFAST) or "-packages/holdfast/" in file or _TORCH.search(file):
        return True
    return not is_installed(file) and (
        file.startswith(_STANDARD) or bool(_ANY_STANDARD.search(file))
    )


def is_other_library(file: str) -> bool:
    """Return whether it is the standard library or a package other than torch and holdfast."""
    if not file or file.startswith(("<", _HOLDFAST)) or "-packages/holdfast/" in file:
        return False
    return not _TORCH.search(file) and not is_user_file(file)


def innermost_user_frame(stack: ThreadStack) -> SourceLine | None:
    """Return the innermost frame of user code, else of third-party or interactive code."""
    for matches in (is_user_file, _is_third_party, _is_interactive):
        for frame in stack.frames:
            if matches(frame.file):
                return frame
    return None


def is_user_file(file: str) -> bool:
    """Return whether it is a user file: neither library code nor installed."""
    return not is_library_frame(file) and not is_installed(file)


def _is_third_party(file: str) -> bool:
    return not is_library_frame(file)


def _is_interactive(file: str) -> bool:
    return file.startswith("<") and not file.startswith("<frozen")
