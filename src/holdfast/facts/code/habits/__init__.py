"""Habits that a few lines show, and that no run of the program is needed for: files, loops, handles, groups.

One walk over the functions in whose text one of the words stands; a module without them costs a search in its text.

    passages     functions as they are written       callees    which of them a call means, and who calls one
    files, paths what is loaded and saved             loops      what waits in each round
    groups       how they are made and taken down     handles    of collectives that nobody waits for
    seeds        the same on all ranks                averages   means of ranks' own means
    shards       by the number within the node
    failed_scores  evaluations that fail unseen
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from holdfast.facts.code.habits.files import files
from holdfast.facts.code.habits.groups import groups
from holdfast.facts.code.habits.handles import Handles
from holdfast.facts.code.habits.loops import loops
from holdfast.facts.code.habits.passages import Words, passages
from holdfast.facts.code.habits.seeds import seeds
from holdfast.facts.code.habits.shards import shards
from holdfast.facts.code.modules import Module, Names
from holdfast.facts.code.partings import Parting

_ASIDE = Words(("async_op", "isend(", "irecv("))
_WORDS = Words(("weights_only", "save(", ".backward(", "init_process_group(", *_ASIDE.parts))
#: Where something is seeded, these too.
_SEEDED = Words((*_WORDS.parts, "manual_seed", "gather"))


def habits(modules: Collection[Module], names: Names) -> Iterator[Parting]:
    """What is seen in each module that speaks of torch, and of handles that go from one function to another."""
    aside = []
    for module in modules:
        text = module.text
        words = _SEEDED if "manual_seed" in text else _WORDS
        if "torch" in text and words.stand_in(text):
            seen = list(passages(module, names, words))
            for look in (files, loops, groups, seeds):
                with suppress(RecursionError):  # an expression of thousands of terms
                    yield from look(seen)
            if _ASIDE.stand_in(text):
                aside.append(seen)
    with suppress(RecursionError):
        yield from Handles(aside, modules).lost(modules)
        yield from shards(modules, names)
