"""Habits that a few lines show, and that no run of the program is needed for: files, loops, handles, groups.

One walk over the functions in whose text one of the words stands; a module without them costs a search in its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.facts.code.habits_files import files
from holdfast.facts.code.habits_loops import loops
from holdfast.facts.code.modules import Module, Names
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.passages import passages

_WORDS = re.compile(r"\bweights_only\b|\bsave\(|\bbackward\(")


def habits(modules: Iterable[Module], names: Names) -> Iterator[Parting]:
    """What is seen in each module that speaks of torch."""
    for module in modules:
        if any("torch" in line for line in module.lines):
            seen = list(passages(module, names, _WORDS))
            yield from files(seen)
            yield from loops(seen)
