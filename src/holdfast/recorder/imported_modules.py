"""Record what a script has imported by the end of its first step.

Standby workers preload these modules. Written once, beside the trace file. Lists installed modules
with their files; modules beside the script are user code and are read again at every start.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import settings
from holdfast.core.atomic_files import write_atomic

#: Suffix to the trace file's name.
SUFFIX = ".imports"
#: Not preloaded: their import joins a job or takes the device, which each rank must do itself.
_NOT_PRELOADED = frozenset(
    {"mpi4py", "horovod", "pycuda", "cupy", "tensorflow", "jax", "wandb", "__main__"}
)
_INSTALLED = ("site-packages", "dist-packages")
_OWN_FOLDER = f"{Path(__file__).parents[1]}/"
#: Variables that torch sets itself when parts of it are imported.
_SET_BY_TORCH = ("TORCHINDUCTOR_", "TRITON_")


class ImportedModules(msgspec.Struct, frozen=True):
    """The modules by name, with their files, in import order; ``size`` is private memory in bytes.

    ``why_not`` says why nothing may be preloaded; empty if it may.
    """

    modules: dict[str, str] = {}
    why_not: str = ""
    size: int = 0


class ImportRecorder:
    """Follows one process from its start to the end of its first step."""

    def __init__(self, trace: Path) -> None:
        self._path = Path(f"{trace}{SUFFIX}")
        self._at_start = settings.current_environment()
        self._changed: tuple[str, ...] = ()
        self._written = False

    def before_torch(self) -> None:
        """Note which variables the script set before importing torch; they may affect it."""
        self._changed = _changed_variables(self._at_start)

    def on_step(self, _: int) -> None:
        """Write the file after the first step; no effect later."""
        if not self._written:
            self._written = True
            with suppress(OSError, ValueError):
                write_atomic(self._path, msgspec.json.encode(self._imports()))

    def _imports(self) -> ImportedModules:
        if self._changed:
            return ImportedModules(
                why_not=f"the script sets {', '.join(self._changed)} before it imports torch"
            )
        only = {"torch", "holdfast"} if _changed_variables(self._at_start) else None
        return ImportedModules(modules=installed_modules(only), size=_private_memory_bytes())


def installed_modules(only: Collection[str] | None = None) -> dict[str, str]:
    """Return the imported installed modules, of the packages ``only`` if set."""
    modules_found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        package = name.partition(".")[0]
        is_installed = isinstance(file, str) and (
            file.startswith(_OWN_FOLDER) or any(f"/{folder}/" in file for folder in _INSTALLED)
        )
        if is_installed and package not in _NOT_PRELOADED and (only is None or package in only):
            modules_found[name] = str(file)
    return modules_found


def _changed_variables(previous: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables changed since the start, by the script or its imports."""
    current = settings.current_environment()
    changed = (
        name for name in current.keys() | previous.keys() if current.get(name) != previous.get(name)
    )
    return tuple(sorted(name for name in changed if not name.startswith(_SET_BY_TORCH)))


def _private_memory_bytes() -> int:
    """Return the private memory of this process, in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def import_all(modules: Mapping[str, str]) -> None:
    """Import ``modules`` (by name, with the file of each) as far as possible.

    Raises:
        ImportError: one of them would now come from another file.
    """
    for name, file in modules.items():
        if name in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # created on demand by its package
            continue
        if spec is None:
            continue
        if spec.origin != file:
            message = f"{name} was imported from {file} and would now come from {spec.origin}"
            raise ImportError(message)
        with suppress(ImportError):
            importlib.import_module(name)
