"""Passages of source: a function, or a module's top, with its own nodes in the order of the text and what names mean.

For what a few words of the text give away, and that needs no run of the program: only functions in which such a word
stands are walked, once.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.facts.code.effects import Place
from holdfast.facts.code.modules import FUNCTIONS, Class, Function, Module, Names, absolute, canonical, dotted

_TOKENS = frozenset({"ctx", "op", "ops"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class Words:
    """Parts of a text that are looked for one by one, which is much faster than by an expression that has them all."""

    parts: tuple[str, ...]

    def stand_in(self, text: str) -> bool:
        """One of them does."""
        return any(part in text for part in self.parts)


@dataclass(eq=False, slots=True)
class Passage:
    """A function or a module's top; ``owner`` is the class of a method. ``nodes`` are those of no inner function."""

    module: Module
    names: Names
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    owner: ast.ClassDef | None = None
    nodes: list[ast.AST] = field(default_factory=list)
    _imports: dict[str, str] | None = None

    @property
    def name(self) -> str:
        """The function's name; of a module's top ``<module>``."""
        return "<module>" if isinstance(self.node, ast.Module) else self.node.name

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that can be given by position."""
        if isinstance(self.node, ast.Module):
            return []
        return [each.arg for each in (*self.node.args.posonlyargs, *self.node.args.args)]

    @property
    def imports(self) -> dict[str, str]:
        """What the function itself imports: name → dotted name."""
        if isinstance(self.node, ast.Module):
            return {}
        if self._imports is None:
            self._imports = {}
            for node in self.nodes:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    home = f"{absolute(self.module, node)}." if isinstance(node, ast.ImportFrom) else ""
                    for alias in node.names:
                        short = alias.name if home else alias.name.partition(".")[0]
                        self._imports[alias.asname or short] = f"{home}{alias.name if alias.asname else short}"
        return self._imports

    def place(self, node: ast.AST) -> Place:
        """The line of a node."""
        return Place(self.module.file, getattr(node, "lineno", 0), self.name)

    def entity(self, node: ast.expr) -> Function | Class | Module | str:
        """What a name means; the canonical name where it is of a library, empty where nothing is known."""
        name = dotted(node)
        first, _, rest = name.partition(".")
        if not first:
            return ""
        if first == "self" and self.owner is not None and rest:
            own = self.module.names.get(self.owner.name)
            return (self.names.method(own, rest) or "") if isinstance(own, Class) else ""
        if first in self.imports:
            found: Function | Class | Module | str = self.names.find(self.imports[first])
        elif first in self.module.names:
            found = self.names.member(self.module, first)
        else:
            return ""
        if not rest:
            return canonical(found) if isinstance(found, str) else found
        if isinstance(found, Module):
            return self.names.find(f"{found.name}.{rest}")
        return canonical(f"{found}.{rest}") if isinstance(found, str) else ""

    def called(self, node: ast.AST) -> str:
        """The canonical name of the library's function that a node calls; empty for anything else."""
        found = self.entity(node.func) if isinstance(node, ast.Call) else ""
        return found if isinstance(found, str) else ""

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of these library functions."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and self.called(node) in names:
                yield node


def inside(*nodes: ast.AST, closed: tuple[type[ast.AST], ...] = FUNCTIONS) -> list[ast.AST]:
    """Nodes and all that is in them, in the order of the text; not what is in ``closed`` ones, inner functions."""
    found: list[ast.AST] = []
    waiting = list(reversed(nodes))
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, closed):
            waiting.extend(reversed(_children(node)))
    return found


def _children(node: ast.AST) -> list[ast.AST]:
    """As ast.iter_child_nodes, without operators and what says that a name is read, which are a third of all."""
    found: list[ast.AST] = []
    for name in node._fields:
        if name not in _TOKENS:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def passages(module: Module, names: Names, words: Words | None = None) -> Iterator[Passage]:
    """A module's top and its functions, inner ones too; of functions only those in whose text a word stands."""
    lines = None if words is None else [at for at, line in enumerate(module.lines, 1) if words.stand_in(line)]
    if lines is not None and not lines:
        return
    waiting: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.Module, ast.ClassDef | None]]
    waiting = [(module.tree, None)]
    while waiting:
        node, owner = waiting.pop()
        passage = Passage(module, names, node, owner, inside(*node.body))
        methods = {each: outer for outer in passage.nodes if isinstance(outer, ast.ClassDef) for each in outer.body}
        for each in passage.nodes:
            if isinstance(each, FUNCTIONS) and (lines is None or _among(lines, each)):
                waiting.append((each, methods.get(each)))
        yield passage


def _among(lines: Sequence[int], node: ast.stmt) -> bool:
    """One of the lines is in it."""
    at = bisect_left(lines, node.lineno)
    return at < len(lines) and lines[at] <= (node.end_lineno or node.lineno)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """What a call gives for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    given = call.args[: position + 1]
    return (
        given[position] if len(given) > position and not any(isinstance(each, ast.Starred) for each in given) else None
    )


def says(call: ast.Call, name: str, *, answer: bool) -> bool:
    """The call gives this keyword, and as this constant."""
    value = argument(call, len(call.args), name)
    return isinstance(value, ast.Constant) and value.value is answer
