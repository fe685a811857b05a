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
from holdfast.variables import concerns

_NAMES = re.compile(r"""["']((?:TORCH|N[CL]|GLOO|PET_)[A-Z0-9_]{3,})["']|update\(([A-Z][A-Z0-9_]+)=""")
#: A line that surely speaks of an environment, and of no table of names.
_ENVIRONMENT = re.compile(r"\b(environ|env|putenv|setenv)\b")


def set_variables(modules: Iterable[Module]) -> Iterator[Parting]:
    """Each line that sets one; its name is the ``text``, what it is set to is said by ``how`` ("" if unknown)."""
    sources = {module: "\n".join(module.lines) for module in modules}
    for module, text in sources.items():
        names = {one or other for one, other in _NAMES.findall(text)} if "env" in text else set()
        if any(map(concerns, names)):
            for given in _given(module, text):
                if concerns(given.name) and not any(_reads(other, given.name) for other in sources.values()):
                    place = Place(module.file, given.line or 0)
                    yield Parting("set", place, place, given.name, (), how=given.value or "")


def _given(module: Module, text: str) -> Iterator[Given]:
    try:
        found = list(python_source.read(text, module.file))
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
