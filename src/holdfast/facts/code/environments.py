"""Variables of torch's and NCCL's families that a program sets, and does not read itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from holdfast.facts.code.effects import Place
from holdfast.facts.code.modules import Module
from holdfast.facts.code.partings import Parting
from holdfast.variables import Status, concerns, table

if TYPE_CHECKING:
    from holdfast.facts.variables import Given

_NAMES = re.compile(r"""["']((?:TORCH|N[CL]|GLOO|PET_)[A-Z0-9_]{3,})["']|update\(([A-Z][A-Z0-9_]+)=""")
#: A line that surely speaks of an environment, and of no table of names.
_ENVIRONMENT = re.compile(r"\b(environ|env|putenv|setenv)\b")


def set_variables(modules: Collection[Module]) -> Iterator[Parting]:
    """Each line that sets one which is not surely read; ``text`` is its name, ``how`` its value ("" if unknown)."""
    for module in modules:
        if "env" in module.text and odd_names(module.text):
            for given in _given(module):
                if _is_odd(given.name) and not any(_reads(other.text, given.name) for other in modules):
                    place = Place(module.file, given.line or 0)
                    yield Parting("set", place, place, given.name, (), how=given.value or "")


def odd_names(text: str) -> set[str]:
    """The names of such variables that stand in a text, set or read."""
    return set(filter(_is_odd, (one or other for one, other in _NAMES.findall(text))))


def _is_odd(name: str) -> bool:
    """A name of the families, and none that the table knows to be read today."""
    row = table().get(name)
    return concerns(name) and (row is None or row.status is not Status.ACTIVE)


def _given(module: Module) -> Iterator[Given]:
    from holdfast.facts.launch_files import python_source  # noqa: PLC0415 - few programs set any
    from holdfast.facts.launch_files.shell import Unreadable  # noqa: PLC0415

    try:
        found = list(python_source.read_tree(module.tree, module.file))
    except Unreadable:
        return
    for given in found:
        if given.value is not None or _ENVIRONMENT.search(module.lines[(given.line or 1) - 1]):
            yield given


def _reads(text: str, name: str) -> bool:
    if name not in text:
        return False
    return bool(
        re.search(
            rf"""(?:getenv\(|environ\.get\(|env\.get\(|\.pop\()\s*["']{name}["']|["']{name}["'] (?:not )?in """, text
        )
        or re.search(rf"""environ\[["']{name}["']\](?!\s*=[^=])""", text)
    )
