"""Edits that a rule offers: one line of a file, replaced or put in, that no right program can tell."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence

import msgspec

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Edit(msgspec.Struct, frozen=True):
    """``text`` becomes line ``line`` (from 1), where ``was`` stands now; that goes down by one where it ``inserts``."""

    line: int
    was: str
    text: str
    inserts: bool = False


def tree_of(lines: Sequence[str]) -> ast.Module | None:
    """The program of these lines; None where they are none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def own(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function or module that are not of a function or class within."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))


def scope_of(tree: ast.Module, line: int, kind: type[ast.stmt]) -> tuple[ast.AST, ast.stmt] | None:
    """The statement of this kind that begins on a line, and the function or module whose own it is."""
    scopes: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, *_SCOPES))]
    for scope in scopes:
        for node in own(scope):
            if isinstance(node, kind) and node.lineno == line:
                return scope, node
    return None


def given_once(scope: ast.AST, name: str) -> ast.expr | None:
    """What a name is given, where it is given something once in a scope, by a plain statement, and nowhere within."""
    found: ast.expr | None = None
    count = 0
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            count += 1
        elif (isinstance(node, ast.arg) and node.arg == name) or (
            isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names
        ):
            return None
    for node in own(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                found = node.value
    return found if count == 1 else None
