"""Which functions can matter: those from which a collective is reached, and those whose answer can differ over ranks.

By words of their text alone, which takes a small part of the time of running them: a function matters that has one of
the words of :mod:`library`, or the name of a function that matters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.facts.code import library
from holdfast.facts.code.modules import Class, Function, Module

#: A program of so few functions is run whole.
_SMALL = 1000
_WORD = re.compile(r"[A-Za-z_]\w*")
#: Names that half of all classes have: of these nothing is concluded.
_COMMON = frozenset(
    {"forward", "__call__", "__init__", "get", "run", "main", "update", "append", "load", "add", "close", "reset",
     "items", "keys", "values", "__getitem__", "__len__", "__iter__", "to", "copy", "format", "join", "build", "parse",
     "read", "write", "apply", "call", "state_dict", "load_state_dict", "__enter__", "__exit__", "setup", "start",
     "stop", "name", "type", "size"}
)  # fmt: skip
#: Words of functions that may enter something; those that are left out mean other things mostly.
ENTERS = frozenset(
    {name.rpartition(".")[2] for name in library.CALLS}
    | {name for methods in library.METHODS.values() for name in methods}
    | {"backward", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "DDP", "FSDP", "prepare",
       "Thread", "DistributedSampler", "set_epoch", "GradScaler", "unscale_"}
) - {"step", "save", "load", "gather", "reduce", "broadcast", "scatter", "send", "recv", "test", "fit", "train",
     "predict", "log", "sync", "state_dict", "evaluate", "validate", "compute", "split_group"}  # fmt: skip
#: Words of functions that may answer by rank.
DIFFERS = frozenset(
    {name.rpartition(".")[2] for name in library.VARYING} | set(library.VARYING_NAMES) | set(library.VARYING_VARIABLES)
    | set(library.FILE_TESTS) | {"rank", "environ"} | set(library.GUARDS)
) - {"time", "now", "monotonic", "perf_counter", "glob", "is_main"}  # fmt: skip


class Relevance:
    """``enters`` are functions from which a collective may be reached, ``differs`` those that may answer by rank."""

    def __init__(self, modules: Iterable[Module]) -> None:
        words: dict[Function, frozenset[str]] = {}
        self.classes: set[Class] = set()
        for module in modules:
            for function in module.functions():
                node = function.node
                text = "\n".join(module.lines[node.lineno - 1 : node.end_lineno])
                words[function] = frozenset(_WORD.findall(text))
        self.enters = _closure(words, ENTERS)
        self.differs = _closure(words, DIFFERS)
        self.whole = len(words) <= _SMALL
        both = self.enters | self.differs
        self.classes = {function.owner for function in both if function.owner is not None}

    def matters(self, function: Function) -> bool:
        """It has to be run to know what it enters or answers."""
        if self.whole or function in self.enters or function in self.differs:
            return True
        if function.owner is not None:
            return function.name == "__init__" and function.owner in self.classes
        return False


def _closure(words: Mapping[Function, frozenset[str]], seeds: frozenset[str]) -> set[Function]:
    named: dict[str, list[Function]] = defaultdict(list)
    for function, own in words.items():
        for word in own:
            named[word].append(function)
    found: set[Function] = set()
    waiting = [function for seed in seeds for function in named.get(seed, ())]
    done: set[str] = set()
    while waiting:
        function = waiting.pop()
        if function in found:
            continue
        found.add(function)
        names = [function.name]
        if function.name == "__init__" and function.owner is not None:
            names = [function.owner.name]
        for name in names:
            if name not in done and name not in _COMMON:
                done.add(name)
                waiting.extend(named.get(name, ()))
    return found
