"""Which functions can matter: those from which a collective is reached, and those whose answer can differ over ranks.

By the names in their text, which takes a small part of the time of running them: a function matters in which one of the
words of :mod:`library` stands, or a name that means a function that matters. What a name means is resolved as far as
modules and classes go; a method of a receiver that is not known is one of few of that name, or nothing is concluded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from holdfast.facts.code import library
from holdfast.facts.code.modules import Class, Function, Module, Names, canonical

#: A program of so few functions is run whole.
_SMALL = 1000
#: A name, with those that follow after dots; a dot in front: of something that has no name.
_CHAIN = re.compile(r"\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
#: Names that half of all classes have: of these nothing is concluded, nor of one that more classes have than so many.
COMMON = frozenset(
    {"forward", "__call__", "__init__", "get", "run", "main", "update", "append", "load", "add", "close", "reset",
     "items", "keys", "values", "__getitem__", "__len__", "__iter__", "to", "copy", "format", "join", "build", "parse",
     "read", "write", "apply", "call", "state_dict", "load_state_dict", "__enter__", "__exit__", "setup", "start",
     "stop", "name", "type", "size"}
)  # fmt: skip
_MOST_OWNERS = 4
#: What ``apply`` of a function for autograd runs.
_AUTOGRAD = ("apply", "forward", "backward")
#: Words of functions that may enter something; those that are left out mean other things mostly.
ENTERS = frozenset(
    {name.rpartition(".")[2] for name in library.CALLS}
    | {name for methods in library.METHODS.values() for name in methods}
    | {"backward", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "DDP", "FSDP", "prepare",
       "Thread", "DistributedSampler", "set_epoch", "GradScaler", "unscale_", "alarm", "setitimer"}
) - {"step", "save", "load", "gather", "reduce", "broadcast", "scatter", "send", "recv", "test", "fit", "train",
     "predict", "log", "sync", "state_dict", "evaluate", "validate", "compute", "split_group"}  # fmt: skip
#: Words of functions that may answer by rank.
DIFFERS = frozenset(
    {name.rpartition(".")[2] for name in library.VARYING} | set(library.VARYING_NAMES) | set(library.VARYING_VARIABLES)
    | set(library.FILE_TESTS) | {"rank", "environ"} | set(library.GUARDS)
) - {"time", "now", "monotonic", "perf_counter", "glob", "is_main",
     "time_ns", "monotonic_ns", "perf_counter_ns", "utcnow", "default_timer"}  # fmt: skip


class Relevance:
    """``enters`` are functions from which a collective may be reached, ``differs`` those that may answer by rank."""

    def __init__(self, names: Names) -> None:
        functions = [function for module in names.modules.values() for function in module.functions()]
        self.whole = len(functions) <= _SMALL
        self.enters: set[Function] = set()
        self.differs: set[Function] = set()
        self.classes: set[Class] = set()
        if self.whole:
            return
        callers = _Callers(names, functions)
        self.enters = callers.entering()
        self.differs = callers.differing()
        self.classes = {each.owner for each in self.enters | self.differs if each.owner is not None}

    def matters(self, function: Function) -> bool:
        """It has to be run to know what it enters or answers."""
        if self.whole or function in self.enters or function in self.differs:
            return True
        if function.owner is not None:
            return function.name == "__init__" and function.owner in self.classes
        return False


def _text(function: Function) -> str:
    """The lines of a function, its decorators too."""
    first = min([function.node.lineno, *(each.lineno for each in function.decorators)])
    return "\n".join(function.module.lines[first - 1 : function.node.end_lineno])


class _Callers:
    """Who names whom: from each function back to those in whose text it may be meant."""

    def __init__(self, names: Names, functions: Iterable[Function]) -> None:
        self._names = names
        self._methods: dict[str, list[Function]] = defaultdict(list)
        self._overriding: dict[Class, list[Class]] = defaultdict(list)
        owners: dict[Class, None] = {}
        for function in functions:
            if function.owner is not None:
                self._methods[function.name].append(function)
                owners[function.owner] = None
        for owner in owners:
            for base in names.bases(owner):
                if isinstance(base, Class):
                    self._overriding[base].append(owner)
        self._of: dict[Function, list[Function]] = defaultdict(list)
        #: What the same name meant before: for all in a module, and for those of a class that begin with self.
        self._known: dict[object, dict[str, tuple[Function, ...]]] = defaultdict(dict)
        self._collectives: set[tuple[Module, str]] = set()
        self._entering: list[Function] = []
        self._differing: list[Function] = []
        self._words: dict[str, tuple[bool, bool]] = {}
        for function in functions:
            self._read(function)

    def entering(self) -> set[Function]:
        """Functions in which a word stands that may enter something, and all that may call one of them."""
        return self._upwards(self._entering)

    def differing(self) -> set[Function]:
        """Functions in which a word stands that may answer by rank, and all that may call one of them."""
        return self._upwards(self._differing)

    def _upwards(self, waiting: Iterable[Function]) -> set[Function]:
        waiting = list(waiting)
        found: set[Function] = set()
        while waiting:
            function = waiting.pop()
            if function not in found:
                found.add(function)
                waiting.extend(self._of.get(function, ()))
        return found

    def _read(self, function: Function) -> None:
        """Note what the names in the text of a function say; the same ones come again and again."""
        module, owner = function.module, function.owner
        known = self._known[module]
        own = self._known[owner] if owner is not None else known
        enters = differs = False
        for chain in set(_CHAIN.findall(_text(function))):
            words = self._words.get(chain)
            if words is None:
                parts = chain.split(".")
                words = self._words[chain] = not ENTERS.isdisjoint(parts), not DIFFERS.isdisjoint(parts)
            enters, differs = enters or words[0], differs or words[1]
            if "." not in chain and chain not in module.names:
                continue
            of_class = owner if chain.startswith(("self.", "cls.", "super")) else None
            table = known if of_class is None else own
            meant = table.get(chain)
            if meant is None:
                meant = table[chain] = tuple(dict.fromkeys(self._resolved(module, of_class, chain)))
            for each in meant:
                self._of[each].append(function)
            enters = enters or (module, chain) in self._collectives
        if enters:
            self._entering.append(function)
        if differs:
            self._differing.append(function)

    def _resolved(self, module: Module, own: Class | None, chain: str) -> Iterator[Function]:
        first, *rest = chain.split(".")
        if own is not None:
            methods = self._of_class(own, rest[0]) if rest else []
            yield from methods or self._by_name(rest)
            yield from self._by_name(rest[1:])
            return
        held = module.names.get(first) if first else None
        if held is None:
            yield from self._by_name(rest)
            return
        meant = self._names.member(module, first)
        while isinstance(meant, Module) and rest:
            meant = self._names.member(meant, rest.pop(0))
        match meant:
            case Function():
                yield meant
                yield from self._by_name(rest)
            case Class():
                method = self._names.method(meant, "__init__")
                if method is not None:
                    yield method
                if rest:
                    yield from self._of_class(meant, rest[0])
                    yield from self._by_name(rest[1:])
            case str():
                if canonical(".".join((meant, *rest))) in library.CALLS:
                    self._collectives.add((module, chain))
            case _:
                pass

    def _of_class(self, owner: Class, name: str) -> list[Function]:
        """A method of an instance, that may be one of a class below."""
        if name == "apply":
            return [each for called in _AUTOGRAD if (each := self._names.method(owner, called)) is not None]
        inherited = self._names.method(owner, name)
        below = (each.methods[name] for each in self._overriding.get(owner, ()) if name in each.methods)
        return [*([inherited] if inherited is not None else []), *below]

    def _by_name(self, names: Iterable[str]) -> Iterator[Function]:
        for name in names:
            methods = self._methods.get(name, ())
            if len(methods) <= _MOST_OWNERS and name not in COMMON:
                yield from methods
