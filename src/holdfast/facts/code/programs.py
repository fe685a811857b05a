"""A whole program: every module is run once for all ranks, until nothing is learned of its classes and variables."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from msgspec.structs import replace

from holdfast.facts.code.arguments import given_by
from holdfast.facts.code.calls import Calls
from holdfast.facts.code.effects import Body, Place, Way, body_of
from holdfast.facts.code.environments import set_variables
from holdfast.facts.code.expressions import Expressions
from holdfast.facts.code.flow import Flow
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.habits import habits
from holdfast.facts.code.habits.averages import means_of_means
from holdfast.facts.code.habits.failed_scores import failed_scores
from holdfast.facts.code.library import RANK_PARAMETERS
from holdfast.facts.code.memory import Memory
from holdfast.facts.code.modules import Function, Module, Names, last_name
from holdfast.facts.code.ordering import in_function, in_program
from holdfast.facts.code.partings import Parting, is_doubtful, partings, undecided
from holdfast.facts.code.relevance import Relevance
from holdfast.facts.code.things import LAUNCHED, Func, Obj, Scope
from holdfast.facts.code.values import OTHER, UNKNOWN, Kind, Source, Value, kinds_of

#: Rounds at most; from the second on only what may have changed is run again.
_ROUNDS = 4
_STACK = 8000
#: In a program of so few functions an attribute of a configuration means one thing.
_FEW = 300
_REDUCES = frozenset({"all_reduce", "reduce", "all_gather_into_tensor", "gather", "reduce_tensor"})
_MAIN = re.compile(r"main|master|rank_?(zero|0)|chief")


class Program(Expressions, Flow, Calls):
    """The interpreter: its parts together, the rounds, and what is judged.

    ``strict``: partings that cannot be decided are noted too.
    """

    def __init__(self, modules: Mapping[str, Module], *, strict: bool = False) -> None:
        super().__init__()
        self.strict = strict
        self.modules = modules
        self.names = Names(modules)
        self.functions = {}
        self.classes = {}
        self.sharded = set()
        self.relevance = Relevance(self.names)
        self.small = sum(1 for _ in self._functions()) <= _FEW
        self.memory = Memory()
        self.active = {}
        self.depth = 0
        self.decorations = {}
        self.testing = False
        self.test_files = frozenset(module.file for module in self.modules.values() if module.tests)
        self.roots: list[Body] = []

    def look(self) -> Sequence[Parting]:
        """All partings of the program."""
        with _deep_stack():
            for _ in range(_ROUNDS):
                self.memory.begin()
                self._round()
                if not self.memory.changed:
                    break
            found = self._in_order()
        modules = self.modules.values()
        seen = (habits(modules, self.names), failed_scores(modules), means_of_means(modules, self.names))
        for each in chain.from_iterable(seen):
            found.setdefault((each.kind, each.place), each)
        for each in set_variables(modules):
            found.setdefault((f"set {each.text}", each.place), each)
        unlimited = self.limits == {"default"}
        return [each for each in found.values() if each.kind != "long" or unlimited]

    def _in_order(self) -> dict[tuple[str, Place], Parting]:
        """The partings of the last round, and those that lie in the order of the whole."""
        runs = list(self.memory.runs)
        found: dict[tuple[str, Place], Parting] = {}
        for run in runs:
            for key, each in run.found.items():
                found.setdefault(key, each)
        threads = [each for run in runs for each in run.threads]
        for each in (each for body in self.roots for each in in_program(body, threads)):
            found.setdefault((each.kind, each.place), each)
        return found

    def _functions(self) -> Iterator[Function]:
        for module in self.modules.values():
            yield from module.functions()

    def _round(self) -> None:
        for function in (*self._functions(), *self.functions.values()):
            function.seen = 0
        self.decorations = {}
        self.roots = []
        for module in self._in_turn():
            frame = Frame(None, Scope(module.variables, module))
            self.run(frame, module.tree.body)
            body = body_of(frame.effects)
            self.examine(frame, body)
            self.roots.append(body)
        for module in self._in_turn():
            for function in list(module.functions()):
                if not function.seen and (self.relevance.whole or function in self.relevance.enters):
                    self._alone(function)

    def _in_turn(self) -> Iterator[Module]:
        """The program's modules, and then those that test it."""
        modules = self.modules.values()
        for self.testing in (False, True):
            yield from (module for module in modules if module.tests is self.testing)
        self.testing = False

    def _alone(self, function: Function) -> None:
        """A function that nobody here calls: nothing is known of its arguments."""
        names = {name: self._parameter(function, name) for name in function.parameters}
        arguments = function.node.args
        extra = [*arguments.kwonlyargs, *(each for each in (arguments.vararg, arguments.kwarg) if each is not None)]
        names |= {each.arg: UNKNOWN for each in extra}
        if function.owner is not None and function.parameters:
            names[function.parameters[0]] = Value(things=(Obj(function.owner),))
        caller = Frame(None, Scope(function.module.variables, function.module))
        self.summary(function, names, None, caller)
        left = self.decorated(function, None)
        if function.decorators and left.things != (Func(function),):  # called is what its decorators made
            self.call(caller, function.decorators[0], left, given_by(*(names[each] for each in function.parameters)))
            self.examine_way(tuple(caller.effects))

    def _parameter(self, function: Function, name: str) -> Value:
        if name in RANK_PARAMETERS and "world_size" in function.parameters:
            line = function.node.lineno
            source = Source(Kind.RANK, function.module.file, line, f"the parameter {name}")
            return Value((source,), things=(LAUNCHED,))
        cls = self.names.annotated(function, name) if self.small else None
        return Value(known=False, things=(Obj(cls), OTHER)) if cls is not None else UNKNOWN

    def examine(self, frame: Frame, body: Body) -> None:
        """Note where ranks part in a function that has run."""
        self.examine_way(body.way)
        self.memory.read(self, "alarm")
        for each in in_function(body, alone=not frame.control, alarm=self.alarm):
            self._note(each)

    def examine_way(self, way: Way) -> None:
        """Note where ranks part on a way."""
        for each in chain(partings(way), undecided(way) if self.strict else ()):
            self._note(each)

    def _note(self, parting: Parting) -> None:
        handed = parting.sources and all(source.file in self.test_files for source in parting.sources)
        if handed and parting.place.file not in self.test_files:
            return  # what a test hands to the program is not what the program is handed
        if is_doubtful(parting):
            if not self.strict:
                return
            parting = replace(parting, kind="undecided")
        self.memory.now.found.setdefault((parting.kind, parting.place), parting)

    def updated(self, frame: Frame, node: ast.AugAssign, old: Value, new: Value) -> None:
        """A state that is the same on all ranks is changed by what is not: agreed gradients times a local factor."""
        local = bool(new.content) and new.agreed and not old.content
        if local and isinstance(node.target, (ast.Name, ast.Attribute)) and not _is_reduced(frame, node):
            place = frame.place(node)
            self._note(Parting("state", place, place, self.text(node), new.content))

    def returned(self, frame: Frame, node: ast.Return, value: Value) -> None:
        """A function whose name says "main process" answers by the rank within the node."""
        name = frame.function.name if frame.function is not None else ""
        self.called_main(frame, node, name, value)

    def called_main(self, frame: Frame, node: ast.AST, name: str, value: Value) -> None:
        """The number within the node is taken for the number in the job."""
        word = name.lower()
        if frame.function is not None and any("local" in each for each in frame.function.parameters):
            return  # it is told which of the two is meant
        if kinds_of(value.content) == {Kind.LOCAL_RANK} and "local" not in word and _MAIN.search(word):
            place = frame.place(node)
            self._note(Parting("local", place, place, name, value.content))


def _is_reduced(frame: Frame, node: ast.AugAssign) -> bool:
    """A sum of each rank's own, which is added up over ranks farther down."""
    body = frame.function.node if frame.function is not None else frame.scope.module.tree
    name = ast.unparse(node.target)
    return any(
        isinstance(each, ast.Call) and each.lineno > node.lineno and last_name(each.func) in _REDUCES
        and bool(each.args) and ast.unparse(each.args[0]) == name
        for each in ast.walk(body)
    )  # fmt: skip


def program(files: Mapping[str, tuple[str, str]]) -> Program:
    """The program of these files: module name → (path, source)."""
    modules = {}
    for name, (path, text) in files.items():
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        modules[name] = Module(name, path, ast.parse(text), package, text=text)
    return Program(modules)


@contextmanager
def _deep_stack() -> Iterator[None]:
    """The program under test calls as deep as it is followed, and each of its calls is a dozen of ours."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _STACK))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
