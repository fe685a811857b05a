"""Find torch, NCCL and gloo environment variables that a program sets and does not read itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import SINGLE_JOB, Marker
from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.sources.modules import Module
from holdfast.lint.sources.variable_names import is_unknown_variable, unknown_variables

if TYPE_CHECKING:
    from holdfast.host.variable_sources import VariableSetting

#: A line that certainly refers to an environment and not to a table of names.
_ENVIRONMENT = re.compile(r"\b(environ|env|putenv|setenv)\b")


def add_variable(frame: Frame, location: SourceLine, name: str, value: Value | None) -> None:
    """Record the assignment of an environment variable; with one process, the rank is alone."""
    frame.add_effect(Marker("variable", location, name, frame.control))
    if name == "WORLD_SIZE" and value is not None and value.const in (1, "1"):
        frame.add_effect(Marker(SINGLE_JOB, location))


def find_set_variables(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield lines that set an inactive variable: ``text`` is the name, ``detail`` the value."""
    for module in modules:
        if "env" in module.text and unknown_variables(module.text):
            for setting in _settings(module):
                if is_unknown_variable(setting.name) and not any(
                    _reads(other.text, setting.name) for other in modules
                ):
                    location = SourceLine(module.file, setting.line or 0)
                    yield Divergence(
                        "set", location, location, setting.name, (), detail=setting.value or ""
                    )


def _settings(module: Module) -> Iterator[VariableSetting]:
    # not at the top: few programs need these imports, which take 40 ms
    from holdfast.host.launch_files import python_source  # noqa: PLC0415
    from holdfast.host.launch_files.shell import ShellUnreadable  # noqa: PLC0415

    try:
        settings = list(python_source.read_python_tree(module.tree, module.file))
    except ShellUnreadable:
        return
    for setting in settings:
        if setting.value is not None or _ENVIRONMENT.search(module.lines[(setting.line or 1) - 1]):
            yield setting


def _reads(text: str, name: str) -> bool:
    if name not in text:
        return False
    return bool(
        re.search(
            rf"""(?:getenv\(|environ\.get\(|env\.get\(|\.pop\()\s*["']{name}["']"""
            rf"""|["']{name}["'] (?:not )?in """,
            text,
        )
        or re.search(rf"""environ\[["']{name}["']\](?!\s*=[^=])""", text)
    )
