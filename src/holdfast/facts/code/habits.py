"""Habits that a few lines show, and that no run of the program is needed for: files, loops, handles, groups.

One walk over the functions in whose text one of the words stands; a module without them costs a search in its text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress

from holdfast.facts.code.habits_files import files
from holdfast.facts.code.habits_groups import groups
from holdfast.facts.code.habits_handles import Handles
from holdfast.facts.code.habits_loops import loops
from holdfast.facts.code.habits_seeds import seeds
from holdfast.facts.code.modules import Module, Names
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.passages import passages

_ASIDE = re.compile(r"\basync_op\b|\bisend\(|\birecv\(")
_WORDS = re.compile(rf"\bweights_only\b|\bsave\(|\.backward\(|\binit_process_group\(|{_ASIDE.pattern}")
#: Where something is seeded, these too.
_SEEDED = re.compile(rf"{_WORDS.pattern}|\bmanual_seed|gather")


def habits(modules: Collection[Module], names: Names) -> Iterator[Parting]:
    """What is seen in each module that speaks of torch, and of handles that go from one function to another."""
    aside = []
    for module in modules:
        text = "\n".join(module.lines)
        words = _SEEDED if "manual_seed" in text else _WORDS
        if "torch" in text and words.search(text):
            seen = list(passages(module, names, words))
            for look in (files, loops, groups, seeds):
                with suppress(RecursionError):  # an expression of thousands of terms
                    yield from look(seen)
            if _ASIDE.search(text):
                aside.append(seen)
    with suppress(RecursionError):
        yield from Handles(aside).lost(modules)
