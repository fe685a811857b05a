"""What the parts of the interpreter share: what was learned of the program, and what each part asks of the others."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.facts.code.arguments import Arguments
from holdfast.facts.code.effects import Body, Way
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.memory import Memory
from holdfast.facts.code.modules import Class, Definition, Function, Module, Names, dotted
from holdfast.facts.code.relevance import Relevance
from holdfast.facts.code.things import Func
from holdfast.facts.code.values import Kind, Sources, Value


class State(ABC):
    """One interpreter and its program.

    ``functions`` and ``classes`` are the nested ones by the identity of their node; ``sharded`` are classes whose
    instances are sharded. ``memory`` keeps what functions did and found, by context, ``active`` how often each runs
    just now, and ``depth`` all that run; ``decorations`` are functions as their decorators leave them. ``alarm`` is
    what the program's handler of alarms raises, ``limits`` whether groups have the "default" limit of time or their
    "own". ``loose`` are, in a ``small`` program, attributes of things of which nothing is known, where ranks are given
    different ones: by the last part of the owner's name, ``("args", "rank")``. ``testing``: what runs tests the
    program, and what it sets there is not what the program sets. ``roots`` is what modules enter,
    ``dispatchers`` says which functions call methods by a name, ``set_again`` the attributes, by the identity of their
    node, that a function sets again farther down.
    """

    modules: Mapping[str, Module]
    names: Names
    relevance: Relevance
    functions: dict[int, Function]
    classes: dict[int, Class]
    sharded: set[Class]
    memory: Memory
    active: dict[Function, int]
    decorations: dict[Function, Value]
    depth: int
    alarm: str
    limits: set[str]
    testing: bool
    small: bool
    roots: list[Body]

    def __init__(self) -> None:
        self.alarm = ""
        self.limits = set()
        self.loose: dict[tuple[str, str], Value] = {}
        self.set_again: dict[int, set[int]] = {}
        self.dispatchers: dict[Function, bool] = {}
        self._texts: dict[int, str] = {}
        self._dotted: dict[int, str] = {}

    def text(self, node: ast.AST) -> str:
        """A node as it would be written; each is asked for in every context."""
        found = self._texts.get(id(node))
        if found is None:
            found = self._texts[id(node)] = ast.unparse(node)
        return found

    def dotted(self, node: ast.Attribute) -> str:
        """As :func:`holdfast.facts.code.modules.dotted`, remembered."""
        found = self._dotted.get(id(node))
        if found is None:
            found = self._dotted[id(node)] = dotted(node)
        return found

    # ---- expressions

    @abstractmethod
    def evaluate(self, frame: Frame, node: ast.expr | None) -> Value:
        """What ``node`` gives."""

    @abstractmethod
    def tested(self, frame: Frame, node: ast.expr) -> Value:
        """What ``node`` gives as a test: there is something, and more of it than nothing."""

    @abstractmethod
    def entity(self, found: Function | Class | Module | str) -> Value:
        """A thing of the program as a value."""

    @abstractmethod
    def attribute(self, frame: Frame, base: Value, name: str, node: ast.expr) -> Value:
        """What an attribute of this holds."""

    @abstractmethod
    def element(self, over: Value) -> Value:
        """One element of what is looped over."""

    @abstractmethod
    def variable(self, frame: Frame, name: str, node: ast.expr) -> Value:
        """A variable of the environment: the launcher gives each rank its own, or all the same."""

    @abstractmethod
    def source(self, frame: Frame, kind: Kind, node: ast.AST, text: str = "") -> Sources:
        """Here begins a difference over ranks."""

    # ---- statements

    @abstractmethod
    def run(self, frame: Frame, body: Sequence[ast.stmt]) -> None:
        """Run a block until it ends or leaves."""

    @abstractmethod
    def each(self, frame: Frame, target: ast.expr, node: ast.expr, over: Value) -> None:
        """Give a target what one round over ``node`` has."""

    @abstractmethod
    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        """Give a target its value; under a condition that differs, it differs."""

    @abstractmethod
    def change(self, frame: Frame, owner: ast.expr, value: Value, *, grows: bool, things: tuple[Any, ...] = ()) -> None:
        """Something in what ``owner`` names was changed."""

    @abstractmethod
    def store(self, frame: Frame, owner: ast.expr, new: Value) -> None:
        """What a name or attribute holds was changed in place."""

    @abstractmethod
    def write_attribute(self, cls: Class, name: str, value: Value) -> None:
        """An attribute of a class's instances may hold this too."""

    @abstractmethod
    def write_variable(self, module: Module, name: str, value: Value) -> None:
        """A variable of a module may hold this too."""

    # ---- calls

    @abstractmethod
    def call_node(self, frame: Frame, node: ast.Call) -> Value:
        """What a call gives, as it is written."""

    @abstractmethod
    def call(self, frame: Frame, node: ast.expr, called: Value, given: Arguments) -> Value:
        """Call whatever ``called`` may be; where it may be several things there are several ways."""

    @abstractmethod
    def rounds(self, frame: Frame, node: ast.expr, over: Value) -> Value:
        """What is looped over; of an instance of a class of the program what its ``__iter__`` gives."""

    @abstractmethod
    def invoke(self, frame: Frame, node: ast.expr, thing: Func, given: Arguments) -> Value:
        """Run a function with these arguments; what it enters is entered here."""

    @abstractmethod
    def nested(self, frame: Frame, node: Definition, name: str) -> Function:
        """The function that a nested definition makes, the same each time."""

    @abstractmethod
    def decorated(self, function: Function, bound: Value | None) -> Value:
        """A function as its decorators leave it, bound to an instance."""

    @abstractmethod
    def decorate(self, frame: Frame, thing: Func) -> Value:
        """Apply the decorators, the innermost first."""

    # ---- what is judged

    @abstractmethod
    def examine(self, frame: Frame, body: Body) -> None:
        """Note where ranks part in a function that has run."""

    @abstractmethod
    def examine_way(self, way: Way) -> None:
        """Note where ranks part on a way."""

    @abstractmethod
    def updated(self, frame: Frame, node: ast.AugAssign, old: Value, new: Value) -> None:
        """Something was changed in place by an operator."""

    @abstractmethod
    def returned(self, frame: Frame, node: ast.Return, value: Value) -> None:
        """A function answers."""
