"""Former paths of documented modules, for one release: importing one warns and gives the new one.

User code imports ``holdfast.errors`` in ``except`` clauses and the callbacks of Lightning and
Transformers by their full path.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from types import ModuleType

#: Former prefix of a module path -> the current one.
MOVED = {"holdfast.errors": "holdfast.core.errors", "holdfast.runtime": "holdfast.training"}


def current_path(name: str) -> str | None:
    """Return the current path of a moved module, None if ``name`` did not move."""
    for former, current in MOVED.items():
        if name == former or name.startswith(f"{former}."):
            return current + name.removeprefix(former)
    return None


class MovedModuleFinder:
    """Finds a former path as a module with the names of the current one; a finder and a loader.

    It inherits from neither: importing ``importlib.abc`` would take as long as all of holdfast.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - part of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a specification for a former path, else None."""
        if current_path(fullname) is None:
            return None
        return ModuleSpec(fullname, cast("Loader", self), is_package=True)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave the creation of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module from the current one."""
        current = current_path(module.__name__) or module.__name__
        warnings.warn(f"{module.__name__} is now {current}", DeprecationWarning, stacklevel=2)
        names = vars(import_module(current))
        vars(module).update({name: names[name] for name in names if not name.startswith("__")})
