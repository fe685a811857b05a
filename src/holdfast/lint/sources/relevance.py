"""Select the functions that matter: those that reach a collective or may return varying values.

Decided by the names in a function's text, at a small part of the cost of executing it: a function
matters if its text contains a word of :mod:`holdfast.lint.library` or a name that resolves to a
function that matters. Names are resolved through modules and classes; a method of an unknown
receiver is one of the few of that name, or ignored.
"""

from __future__ import annotations

import ast
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from holdfast.lint import library, varying_values
from holdfast.lint.sources.modules import Class, Function, Module, SymbolTable, canonical_name
from holdfast.lint.sources.receiver_types import Classes, ReceiverTypes, union_of

#: Programs with at most this many functions are analyzed completely.
_SMALL_PROGRAM = 1000
#: A dotted name, and a parenthesis if it is called; with a leading dot, of an unnamed expression.
_CHAIN = re.compile(r"(\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\(?)")
#: A comment without quotes before it; in a string over several lines, the text after ``#``.
_COMMENT = re.compile(r"^([^'\"#\n]*)#.*$", re.MULTILINE)
#: Names too common to conclude anything from, as is a name in more than ``_MAX_OWNERS`` classes.
COMMON_NAMES = frozenset({
    "forward", "__call__", "__init__", "get", "run", "main", "update", "append", "load", "add",
    "close", "reset", "items", "keys", "values", "__getitem__", "__len__", "__iter__", "to", "copy",
    "format", "join", "build", "parse", "read", "write", "apply", "call", "state_dict",
    "load_state_dict", "__enter__", "__exit__", "setup", "start", "stop", "name", "type", "size",
})  # fmt: skip
_MAX_OWNERS = 4
#: Methods of objects that most programs use more than their own: of an unknown receiver, they are
#: those of a built-in type, a file or a regular expression.
_BUILTIN_METHODS = frozenset(
    name
    for cls in (str, bytes, list, dict, set, int, float, re.Match, re.Pattern, io.TextIOWrapper)
    for name in dir(cls)
)
_IGNORED_METHODS = COMMON_NAMES | _BUILTIN_METHODS
#: Methods that ``apply`` of an autograd function runs.
_AUTOGRAD = ("apply", "forward", "backward")
#: Other words of functions that may enter a collective.
_ENTERING_WORDS = {
    "backward", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "DDP", "FSDP",
    "prepare", "Thread", "DistributedSampler", "set_epoch", "GradScaler", "unscale_", "alarm",
    "setitimer", "load_state_dict", "save_state_dict",
}  # fmt: skip
#: Names of collectives that usually mean something else, and of clocks that are too common.
_AMBIGUOUS_COLLECTIVES = {
    "step", "save", "load", "gather", "reduce", "broadcast", "scatter", "send", "recv", "test",
    "fit", "train", "predict", "log", "sync", "state_dict", "evaluate", "validate", "compute",
    "split_group", "join", "synchronize",
}  # fmt: skip
_COMMON_QUERIES = {
    "time", "now", "monotonic", "perf_counter", "glob", "is_main", "time_ns", "monotonic_ns",
    "perf_counter_ns", "utcnow", "default_timer", "node",
}  # fmt: skip
#: Words of functions that may enter a collective.
COLLECTIVE_WORDS = (library.COLLECTIVE_NAMES | _ENTERING_WORDS) - _AMBIGUOUS_COLLECTIVES
#: Words of functions whose result may depend on the rank.
VARYING_WORDS = (
    frozenset(
        {name.rpartition(".")[2] for name in varying_values.VARYING}
        | {
            *varying_values.VARYING_NAMES,
            *varying_values.VARYING_VARIABLES,
            *varying_values.FILE_TESTS,
            *varying_values.GUARDS,
        }
        | {"rank", "environ", "get_dist_info", *varying_values.NAMED_RANKS}
    )
    - _COMMON_QUERIES
)


class Relevance:
    """The functions that may reach a collective, and those whose result may depend on the rank."""

    def __init__(self, names: SymbolTable) -> None:
        functions = [
            function for module in names.modules.values() for function in module.functions()
        ]
        self.covers_all = len(functions) <= _SMALL_PROGRAM
        self.entering_functions: set[Function] = set()
        self.varying_functions: set[Function] = set()
        self.raising_functions: set[Function] = set()
        self.classes: set[Class] = set()
        if self.covers_all:
            return
        callers = _CallerGraph(names, functions)
        self.entering_functions = callers.entering()
        self.varying_functions = callers.varying()
        self.raising_functions = callers.raising(self.entering_functions)
        self.classes = {
            member.owner
            for member in self.entering_functions | self.varying_functions
            if member.owner is not None
        }

    def is_relevant(self, function: Function) -> bool:
        """Return True if the function must be executed."""
        if (
            self.covers_all
            or function in self.entering_functions
            or function in self.varying_functions
            or function in self.raising_functions
        ):
            return True
        if function.owner is not None:
            return function.name == "__init__" and function.owner in self.classes
        return False


def _function_text(function: Function) -> str:
    """Return the code of a function with its decorators, without docstring and comments."""
    node, lines = function.node, function.module.lines
    first = min([node.lineno, *(decorator.lineno for decorator in function.decorators)])
    code = lines[first - 1 : node.end_lineno]
    if not isinstance(node, ast.Lambda) and ast.get_docstring(node, clean=False) is not None:
        text = node.body[0]
        code = [*lines[first - 1 : text.lineno - 1], *lines[text.end_lineno : node.end_lineno]]
    return _COMMENT.sub(r"\1", "\n".join(code))


class _CallerGraph:
    """Reverse call graph: from a function to those whose text may refer to it."""

    def __init__(self, names: SymbolTable, functions: Iterable[Function]) -> None:
        self._symbols = names
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
        self._types = ReceiverTypes(names, owners)
        self._callers: dict[Function, list[Function]] = defaultdict(list)
        #: Resolved names: per module, and per class for those that begin with self.
        self._resolved_chains: dict[object, dict[str, tuple[Function, ...]]] = defaultdict(dict)
        self._collectives: set[tuple[Module, str]] = set()
        self._entering: list[Function] = []
        self._varying: list[Function] = []
        self._raising: list[Function] = []
        self._words: dict[str, tuple[bool, bool]] = {}
        for function in functions:
            self._add_function(function)

    def entering(self) -> set[Function]:
        """Return functions with a word that may enter a collective, and all their callers."""
        return self._with_callers(self._entering)

    def varying(self) -> set[Function]:
        """Return functions with a word that may depend on the rank, and all their callers."""
        return self._with_callers(self._varying)

    def raising(self, entering: set[Function]) -> set[Function]:
        """Return functions that raise, so that an entering function that calls them may end."""
        return {
            function
            for function in self._raising
            if not entering.isdisjoint(self._callers.get(function, ()))
        }

    def _with_callers(self, functions: Iterable[Function]) -> set[Function]:
        functions = list(functions)
        reached: set[Function] = set()
        while functions:
            function = functions.pop()
            if function not in reached:
                reached.add(function)
                functions.extend(self._callers.get(function, ()))
        return reached

    def _add_function(self, function: Function) -> None:
        """Add a function to the graph; resolved names are cached, as they recur."""
        module, owner = function.module, function.owner
        known = self._resolved_chains[module]
        class_chains = self._resolved_chains[owner] if owner is not None else known
        enters = varies = raises = False
        variables = self._types.variables(function)
        for chain, parenthesis in set(_CHAIN.findall(_function_text(function))):
            words = self._words.get(chain)
            if words is None:
                parts = chain.split(".")
                words = self._words[chain] = (
                    not COLLECTIVE_WORDS.isdisjoint(parts) or chain == "deepspeed.initialize",
                    not VARYING_WORDS.isdisjoint(parts),
                )
            enters, varies = enters or words[0], varies or words[1]
            raises = raises or chain == "raise"
            first, dot, rest = chain.partition(".")
            if not dot and chain not in module.names:
                continue
            of_class = owner if first in ("self", "cls") else None
            classes = variables.get(first) if dot and of_class is None else None
            if classes is not None:
                callees = tuple(self._members(classes, rest.split("."), called=bool(parenthesis)))
            else:
                table = known if of_class is None else class_chains
                key = chain + parenthesis
                if key not in table:
                    found = self._resolve_chain(module, of_class, chain, called=bool(parenthesis))
                    table[key] = tuple(dict.fromkeys(found))
                callees = table[key]
            for callee in callees:
                self._callers[callee].append(function)
            enters = enters or (module, chain) in self._collectives
        if enters:
            self._entering.append(function)
        if varies:
            self._varying.append(function)
        if raises:
            self._raising.append(function)

    def _resolve_chain(
        self, module: Module, cls: Class | None, chain: str, *, called: bool
    ) -> Iterator[Function]:
        first, *rest = chain.split(".")
        if cls is not None:
            yield from self._members((cls,), rest, called=called)
            return
        definition = module.names.get(first) if first else None
        if definition is None:
            yield from self._methods_named(rest, called=called)
            return
        target = self._symbols.resolve_member(module, first)
        while isinstance(target, Module) and rest:
            target = self._symbols.resolve_member(target, rest.pop(0))
        match target:
            case Function():
                yield target
                yield from self._methods_named(rest, called=called)
            case Class():
                method = self._symbols.find_method(target, "__init__")
                if method is not None:
                    yield method
                if rest:
                    yield from self._methods_of(target, rest[0])
                    yield from self._methods_named(rest[1:], called=called)
            case str():
                name = canonical_name(".".join((target, *rest)))
                if name in library.CALLS or name in library.DERIVED_CALLS:
                    self._collectives.add((module, chain))
            case _:
                pass

    def _members(
        self, classes: Classes, names: Sequence[str], *, called: bool
    ) -> Iterator[Function]:
        """Yield the methods that ``.first.second`` of an object of these classes may mean."""
        for at, name in enumerate(names):
            if classes is None:
                yield from self._methods_named(names[at:], called=called)
                return
            methods = [method for cls in classes for method in self._methods_of(cls, name)]
            classes = union_of(*(self._types.attribute(cls, name) for cls in classes))
            if classes is None and not methods:  # another base of a subclass may define it
                yield from self._methods_named([name], called=called and at + 1 == len(names))
            yield from methods

    def _methods_of(self, owner: Class, name: str) -> list[Function]:
        """Return a method of a class and those that override it."""
        if name == "apply":
            return [
                subclass
                for called in _AUTOGRAD
                if (subclass := self._symbols.find_method(owner, called)) is not None
            ]
        inherited = self._symbols.find_method(owner, name)
        below = (
            subclass.methods[name]
            for subclass in self._overriding.get(owner, ())
            if name in subclass.methods
        )
        return [*([inherited] if inherited is not None else []), *below]

    def _methods_named(self, names: Sequence[str], *, called: bool) -> Iterator[Function]:
        """Yield the methods of unknown receivers; what is not called is a property."""
        for at, name in enumerate(names, 1):
            methods = () if name in _IGNORED_METHODS else self._methods.get(name, ())
            if len(methods) <= _MAX_OWNERS:
                is_called = called and at == len(names)
                yield from (method for method in methods if is_called or _is_property(method))


def _is_property(method: Function) -> bool:
    return method.decorated_by("property", "cached_property")
