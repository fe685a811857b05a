"""An extension of griffe: shows public names, and docstrings as Markdown, in the API reference.

``holdfast`` loads its public names on first use, which static analysis does not see. This extension
reads the table of names, adds each as an alias, and turns roles (``:func:`name```) into code.
"""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from griffe import Alias, Extension, Function, Module, Object

ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")


class PublicNames(Extension):
    """Adds the lazily loaded names to the packages, and rewrites docstrings."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Add ``holdfast.NAME`` for each public name."""
        if pkg.path != "holdfast":
            return
        modules = re.findall(r"[a-z]+", str(pkg["_MODULES"].value).partition("{")[2])
        for name, module in literal_eval(str(pkg["_LAZY"].value)).items():
            pkg.set_member(name, Alias(name, module if name in modules else f"{module}.{name}"))
        sinks = pkg["training.sinks"]
        for name, module in literal_eval(str(sinks["_LAZY"].value)).items():
            sinks.set_member(name, Alias(name, f"{sinks.path}.{module}.{name}"))

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite what Markdown does not support; drop ``**unknown``, which only reports errors."""
        if isinstance(obj, Function) and "unknown" in obj.parameters:
            del obj.parameters["unknown"]
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
