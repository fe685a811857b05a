"""What a script had imported by the end of its first step, for the spare processes that import it in advance.

Written beside the box, once. Named are modules that were installed, with the file that each came from: what lies beside
the script is the user's own and is read anew at every start.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast import settings
from holdfast.report.files import write_whole

#: What is appended to the name of the box.
SUFFIX = ".imports"
#: Their import does what must be done once, by the rank itself: it joins a job, or takes the device.
_NEVER = frozenset({"mpi4py", "horovod", "pycuda", "cupy", "tensorflow", "jax", "wandb", "__main__"})
_INSTALLED = ("site-packages", "dist-packages")
_OURS = f"{Path(__file__).parents[1]}/"
#: Variables that torch sets itself when parts of it are imported.
_SET_BY_TORCH = ("TORCHINDUCTOR_", "TRITON_")


class Imports(msgspec.Struct, frozen=True):
    """The modules by name, each with its file, in the order of their import; ``size`` is of this process, in bytes.

    ``why_not`` says why nothing may be imported in advance; empty where it may.
    """

    modules: dict[str, str] = {}
    why_not: str = ""
    size: int = 0


class Writer:
    """Follows one process from its start to the end of its first step."""

    def __init__(self, box: Path) -> None:
        self._path = Path(f"{box}{SUFFIX}")
        self._at_start = settings.environment()
        self._changed: tuple[str, ...] = ()
        self._written = False

    def before_torch(self) -> None:
        """The script is about to import torch: what it set before may change what torch does when it is imported."""
        self._changed = _changes(self._at_start)

    def stepped(self, _: int) -> None:
        """A step is over. Does nothing after the first."""
        if not self._written:
            self._written = True
            with suppress(OSError, ValueError):
                write_whole(self._path, msgspec.json.encode(self._imports()))

    def _imports(self) -> Imports:
        if self._changed:
            return Imports(why_not=f"the script sets {', '.join(self._changed)} before it imports torch")
        only = {"torch", "holdfast"} if _changes(self._at_start) else None
        return Imports(modules=installed(only), size=_size())


def installed(only: Collection[str] | None = None) -> dict[str, str]:
    """The installed modules that this process has imported, of the packages ``only`` where that is not None."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        package = name.partition(".")[0]
        here = isinstance(file, str) and (file.startswith(_OURS) or any(f"/{folder}/" in file for folder in _INSTALLED))
        if here and package not in _NEVER and (only is None or package in only):
            found[name] = str(file)
    return found


def _changes(before: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that were set since, by the script or by what it imported."""
    now = settings.environment()
    changed = (name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    return tuple(sorted(name for name in changed if not name.startswith(_SET_BY_TORCH)))


def _size() -> int:
    """Bytes of memory that are this process's own."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def import_all(modules: Mapping[str, str]) -> None:
    """Import ``modules`` (by name, with the file of each) as far as they can be.

    Raises:
        ImportError: one of them would now come from another file.
    """
    for name, file in modules.items():
        if name in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # what its package makes when it is asked for, and has not made here
            continue
        if spec is None:
            continue
        if spec.origin != file:
            message = f"{name} was imported from {file} and would now come from {spec.origin}"
            raise ImportError(message)
        with suppress(ImportError):
            importlib.import_module(name)
