"""A whole program: every module is run once for all ranks, until nothing is learned of its classes and variables."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from holdfast.facts.code.averages import means_of_means
from holdfast.facts.code.calls import Calls
from holdfast.facts.code.effects import Body, Way, body_of
from holdfast.facts.code.environments import set_variables
from holdfast.facts.code.expressions import Expressions
from holdfast.facts.code.failed_scores import failed_scores
from holdfast.facts.code.flow import Flow
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.habits import habits
from holdfast.facts.code.library import RANK_PARAMETERS
from holdfast.facts.code.modules import Function, Module, Names
from holdfast.facts.code.ordering import in_function, in_program
from holdfast.facts.code.partings import Parting, partings, undecided
from holdfast.facts.code.relevance import Relevance
from holdfast.facts.code.things import LAUNCHED, Obj, Scope
from holdfast.facts.code.values import UNKNOWN, Kind, Source, Value, kinds_of

#: Rounds at most; of a program of more than so many functions fewer, as the last ones found nothing more in such.
_ROUNDS, _ROUNDS_OF_LARGE, _LARGE = 4, 2, 5000
_STACK = 8000
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
        self.begin()

    def begin(self) -> None:
        """Forget what was found; what was learned of attributes and variables stays."""
        self.memory = {}
        self.active = {}
        self.decorations = {}
        self.depth = 0
        self.changed = False
        self.found = {}
        self.threads = []
        self.roots = []

    def look(self) -> Sequence[Parting]:
        """All partings of the program."""
        with _deep_stack():
            large = sum(1 for _ in self._functions()) > _LARGE
            for _ in range(_ROUNDS_OF_LARGE if large else _ROUNDS):
                self.begin()
                for function in (*self._functions(), *self.functions.values()):
                    function.seen = 0
                self._round()
                if not self.changed:
                    break
            for body in self.roots:
                for each in in_program(body, self.threads):
                    self.found.setdefault((each.kind, each.place), each)
        for each in habits(self.modules.values(), self.names):
            self.found.setdefault((each.kind, each.place), each)
        for each in set_variables(self.modules.values()):
            self.found.setdefault((f"set {each.text}", each.place), each)
        for each in (*failed_scores(self.modules.values()), *means_of_means(self.modules.values())):
            self.found.setdefault((each.kind, each.place), each)
        unlimited = self.limits == {"default"}
        return [each for each in self.found.values() if each.kind != "long" or unlimited]

    def _functions(self) -> Iterator[Function]:
        for module in self.modules.values():
            yield from module.functions()

    def _round(self) -> None:
        for module in self.modules.values():
            frame = Frame(None, Scope(module.variables, module))
            self.run(frame, module.tree.body)
            body = body_of(frame.effects)
            self.examine(frame, body)
            self.roots.append(body)
        for module in self.modules.values():
            for function in list(module.functions()):
                if not function.seen and (self.relevance.whole or function in self.relevance.enters):
                    self._alone(function)

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

    def _parameter(self, function: Function, name: str) -> Value:
        if name in RANK_PARAMETERS and "world_size" in function.parameters:
            line = function.node.lineno
            source = Source(Kind.RANK, function.module.file, line, f"the parameter {name}")
            return Value((source,), things=(LAUNCHED,))
        return UNKNOWN

    def examine(self, frame: Frame, body: Body) -> None:
        """Note where ranks part in a function that has run."""
        self.examine_way(body.way)
        for each in in_function(body, alone=not frame.control, alarm=self.alarm):
            self.found.setdefault((each.kind, each.place), each)

    def examine_way(self, way: Way) -> None:
        """Note where ranks part on a way."""
        for each in chain(partings(way), undecided(way) if self.strict else ()):
            self.found.setdefault((each.kind, each.place), each)

    def updated(self, frame: Frame, node: ast.AugAssign, old: Value, new: Value) -> None:
        """A state that is the same on all ranks is changed by what is not: agreed gradients times a local factor."""
        local = bool(new.content) and new.agreed and not old.content
        if local and isinstance(node.target, (ast.Name, ast.Attribute)):
            place = frame.place(node)
            self.found.setdefault(("state", place), Parting("state", place, place, self.text(node), new.content))

    def returned(self, frame: Frame, node: ast.Return, value: Value) -> None:
        """A function whose name says "main process" answers by the rank within the node."""
        name = frame.function.name if frame.function is not None else ""
        self.called_main(frame, node, name, value)

    def called_main(self, frame: Frame, node: ast.AST, name: str, value: Value) -> None:
        """The number within the node is taken for the number in the job."""
        word = name.lower()
        if kinds_of(value.content) == {Kind.LOCAL_RANK} and "local" not in word and _MAIN.search(word):
            place = frame.place(node)
            self.found.setdefault(("local", place), Parting("local", place, place, name, value.content))


def program(files: Mapping[str, tuple[str, str]]) -> Program:
    """The program of these files: module name → (path, source)."""
    modules = {}
    for name, (path, text) in files.items():
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        modules[name] = Module(name, path, ast.parse(text), package, lines=text.split("\n"))
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
