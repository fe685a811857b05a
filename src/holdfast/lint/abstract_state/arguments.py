"""The arguments of a call, and a library call with its context."""

from __future__ import annotations

import ast

import msgspec

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.values import UNKNOWN, Value
from holdfast.lint.abstract_state.frames import Frame


class Arguments(msgspec.Struct):
    """The values and expressions of a call; ``starred`` stands for those of ``*`` and ``**``."""

    positional: list[Value] = msgspec.field(default_factory=list)
    nodes: list[ast.expr | None] = msgspec.field(default_factory=list)
    named: dict[str, Value] = msgspec.field(default_factory=dict)
    named_nodes: dict[str, ast.expr] = msgspec.field(default_factory=dict)
    starred: Value | None = None

    def get(self, position: int, name: str) -> Value | None:
        """Return the argument by name or position; None if it is missing."""
        if name in self.named:
            return self.named[name]
        return self.positional[position] if 0 <= position < len(self.positional) else None

    def node(self, position: int, name: str) -> ast.expr | None:
        """Return the expression of an argument; None if it is missing."""
        if name in self.named_nodes:
            return self.named_nodes[name]
        return self.nodes[position] if 0 <= position < len(self.nodes) else None

    def is_constant(self, name: str, answer: object) -> bool:
        """Return True if the keyword argument is this constant."""
        value = self.named.get(name)
        return value is not None and value.const is answer

    @property
    def all_values(self) -> list[Value]:
        """Return all values."""
        return [
            *self.positional,
            *self.named.values(),
            *([self.starred] if self.starred is not None else []),
        ]


def positional_arguments(*values: Value) -> Arguments:
    """Return positional arguments without expressions."""
    return Arguments(list(values), [None] * len(values))


class LibraryCall(msgspec.Struct, frozen=True, eq=False):
    """A library call: ``name`` is the canonical name of a function, or the bare name of a method.

    For a method, ``receiver`` is the object and ``receiver_class`` its class as named in
    :mod:`holdfast.lint.library`.
    """

    frame: Frame
    node: ast.expr
    name: str
    arguments: Arguments
    receiver_class: str = ""
    receiver: Value = UNKNOWN

    @property
    def location(self) -> SourceLine:
        """Return the source line of the call."""
        return self.frame.location(self.node)

    @property
    def receiver_node(self) -> ast.expr | None:
        """Return the expression of a method's receiver."""
        called = self.node.func if isinstance(self.node, ast.Call) else None
        return called.value if isinstance(called, ast.Attribute) else None

    def first(self, name: str = "", otherwise: Value = UNKNOWN) -> Value:
        """Return the first argument, by position or name."""
        value = self.arguments.get(0, name)
        return value if value is not None else otherwise
