"""Which frame of a stack is the user's: outside torch, holdfast, the standard library and installed packages."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from holdfast.facts.ranks import Place, Stack

_HOLDFAST = str(Path(__file__).resolve().parents[1]) + "/"
_STANDARD = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_PACKAGES = re.compile(r"/(site|dist)-packages/")
#: The standard library of another interpreter, seen from a watcher that runs on its own.
_ANY_STANDARD = re.compile(r"/lib(64)?/python3(\.\d+)?t?/")
#: torch as installed, and as built in a checkout, where no packages folder is in the path.
_TORCH = re.compile(
    r"/(site|dist)-packages/(torch|functorch|torchgen|triton)/"
    r"|/torch/(_\w+|autograd|cuda|distributed|fx|jit|multiprocessing|nn|optim|profiler|utils|xpu)(/|\.py$)"
    r"|/torch/(functional|library|serialization|storage)\.py$"
)


def is_installed(file: str) -> bool:
    """True for a file below site-packages or dist-packages."""
    return bool(_PACKAGES.search(file))


def is_machinery(file: str) -> bool:
    """True for torch, holdfast itself, the standard library and code without a file (``<frozen importlib>``)."""
    if not file or file.startswith("<"):
        return True
    if file.startswith(_HOLDFAST) or "-packages/holdfast/" in file or _TORCH.search(file):
        return True
    return not is_installed(file) and (file.startswith(_STANDARD) or bool(_ANY_STANDARD.search(file)))


def innermost_user(stack: Stack) -> Place | None:
    """The first frame in the user's own files; failing that, in another installed package, or in typed-in code."""
    for wanted in (is_own, _is_third_party, _is_typed_in):
        for frame in stack.frames:
            if wanted(frame.file):
                return frame
    return None


def is_own(file: str) -> bool:
    """True for a file of the user's own: neither machinery nor installed."""
    return not is_machinery(file) and not is_installed(file)


def _is_third_party(file: str) -> bool:
    return not is_machinery(file)


def _is_typed_in(file: str) -> bool:
    return file.startswith("<") and not file.startswith("<frozen")
