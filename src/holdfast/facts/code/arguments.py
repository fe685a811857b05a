"""What a call gives, and one call of a library with all that is known of it."""

from __future__ import annotations

import ast

import msgspec

from holdfast.facts.code.effects import Place
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.values import UNKNOWN, Value


class Arguments(msgspec.Struct):
    """What a call gives: values and their expressions; ``rest`` stands for what ``*`` and ``**`` give besides."""

    positional: list[Value] = msgspec.field(default_factory=list)
    nodes: list[ast.expr | None] = msgspec.field(default_factory=list)
    named: dict[str, Value] = msgspec.field(default_factory=dict)
    named_nodes: dict[str, ast.expr] = msgspec.field(default_factory=dict)
    rest: Value | None = None

    def get(self, position: int, name: str) -> Value | None:
        """The argument of that name or position; None where it is not given."""
        if name in self.named:
            return self.named[name]
        return self.positional[position] if 0 <= position < len(self.positional) else None

    def node(self, position: int, name: str) -> ast.expr | None:
        """Its expression."""
        if name in self.named_nodes:
            return self.named_nodes[name]
        return self.nodes[position] if 0 <= position < len(self.nodes) else None

    def says(self, name: str, answer: object) -> bool:
        """The argument of that name is given, as this constant."""
        value = self.named.get(name)
        return value is not None and value.const is answer

    @property
    def all(self) -> list[Value]:
        """All values."""
        return [*self.positional, *self.named.values(), *([self.rest] if self.rest is not None else [])]


def given_by(*values: Value) -> Arguments:
    """Arguments by position that no expression stands for."""
    return Arguments(list(values), [None] * len(values))


class LibraryCall(msgspec.Struct, frozen=True, eq=False):
    """A call of a library: ``name`` is the canonical one of a function, the plain one of a method.

    Of a method, ``receiver`` is what it belongs to and ``kind`` the class of that, as :mod:`library` calls it.
    """

    frame: Frame
    node: ast.expr
    name: str
    given: Arguments
    kind: str = ""
    receiver: Value = UNKNOWN

    @property
    def place(self) -> Place:
        """Where it is written."""
        return self.frame.place(self.node)

    @property
    def written(self) -> ast.expr | None:
        """The expression of a method's receiver."""
        called = self.node.func if isinstance(self.node, ast.Call) else None
        return called.value if isinstance(called, ast.Attribute) else None

    def first(self, name: str = "", otherwise: Value = UNKNOWN) -> Value:
        """The first argument, by position or by name."""
        value = self.given.get(0, name)
        return value if value is not None else otherwise
