"""Edits that a rule offers: replace or insert one line; a correct program behaves the same."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence

import msgspec

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Edit(msgspec.Struct, frozen=True):
    """Replace line ``line`` (from 1) with ``replacement``, or insert that before it.

    ``original`` is the expected text of the line.
    """

    line: int
    original: str
    replacement: str
    is_insertion: bool = False


def parse_lines(lines: Sequence[str]) -> ast.Module | None:
    """Return the syntax tree of these lines; None if they do not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def iter_own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without those of nested functions and classes."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            stack.extend(ast.iter_child_nodes(node))


def find_statement(
    tree: ast.Module, line: int, kind: type[ast.stmt]
) -> tuple[ast.AST, ast.stmt] | None:
    """Return the statement of this kind that begins on a line, with its function or module."""
    scopes: list[ast.AST] = [
        node for node in ast.walk(tree) if isinstance(node, (ast.Module, *_SCOPES))
    ]
    for scope in scopes:
        for node in iter_own_nodes(scope):
            if isinstance(node, kind) and node.lineno == line:
                return scope, node
    return None


def single_assignment(scope: ast.AST, name: str) -> ast.expr | None:
    """Return the value of a name that one plain statement in the scope assigns; None otherwise."""
    value: ast.expr | None = None
    count = 0
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            count += 1
        elif (isinstance(node, ast.arg) and node.arg == name) or (
            isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names
        ):
            return None
    for node in iter_own_nodes(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                value = node.value
    return value if count == 1 else None
