"""Programs given as source text."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from holdfast.lint.interpreter.programs import Program
from holdfast.lint.sources.modules import Module


def program_from_sources(files: Mapping[str, tuple[str, str]]) -> Program:
    """Return the program of these files: module name → (path, source)."""
    return Program(modules_from_sources(files))


def modules_from_sources(files: Mapping[str, tuple[str, str]]) -> dict[str, Module]:
    """Return the modules of these files: module name → (path, source)."""
    modules = {}
    for name, (path, text) in files.items():
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        modules[name] = Module(name, path, ast.parse(text), package, text=text)
    return modules
