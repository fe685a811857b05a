"""Variables of torch's and NCCL's families that a program sets, and does not read itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.facts.code.effects import Place
from holdfast.facts.code.modules import Module
from holdfast.facts.code.partings import Parting
from holdfast.facts.launch_files import python_source
from holdfast.facts.launch_files.shell import Unreadable
from holdfast.facts.variables import Given
from holdfast.variables import Status, concerns, table

_NAMES = re.compile(r"""["']((?:TORCH|N[CL]|GLOO|PET_)[A-Z0-9_]{3,})["']|update\(([A-Z][A-Z0-9_]+)=""")
#: A line that surely speaks of an environment, and of no table of names.
_ENVIRONMENT = re.compile(r"\b(environ|env|putenv|setenv)\b")


def set_variables(modules: Iterable[Module]) -> Iterator[Parting]:
    """Each line that sets one which is not surely read; ``text`` is its name, ``how`` its value ("" if unknown)."""
    sources = {module: "\n".join(module.lines) for module in modules}
    for module, text in sources.items():
        names = {one or other for one, other in _NAMES.findall(text)} if "env" in text else set()
        if any(map(_is_odd, names)):
            for given in _given(module):
                if _is_odd(given.name) and not any(_reads(other, given.name) for other in sources.values()):
                    place = Place(module.file, given.line or 0)
                    yield Parting("set", place, place, given.name, (), how=given.value or "")


def _is_odd(name: str) -> bool:
    """A name of the families, and none that the table knows to be read today."""
    row = table().get(name)
    return concerns(name) and (row is None or row.status is not Status.ACTIVE)


def _given(module: Module) -> Iterator[Given]:
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
