"""Decide if a path is the same on all ranks, by the names in it and in what it was built from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.lint.patterns.rank_guards import RankGuards, Unit
from holdfast.lint.patterns.scopes import argument, walk

#: Words in a path that may make it rank-specific.
_OWN_PATH = re.compile(
    r"rank|host|node|proc|pid|uuid|uid|worker|local|rand|te?mp|shard|devnull|/dev/|sys\.|device|gpu"
    r"|now\(|time\(|DistributedSampler\(|\bstdout|\bstderr|cache_dir|pop\((?!['\"])|\bidx\b|\bid\b",
    re.IGNORECASE,
)
_CLOCK_NAME = re.compile(r"(?:\w+\.)*(?:now|time|strftime|uuid[14]|localtime)\(")
_MAX_STEPS = 4


def is_shared_path(guards: RankGuards, unit: Unit, path: ast.expr) -> bool:
    """Return True if nothing in a path suggests that it differs between ranks."""
    return not any(_OWN_PATH.search(text) for text in _origins(guards, unit, path, 0))


def is_named_by_clock(guards: RankGuards, unit: Unit, path: ast.expr) -> bool:
    """Return True if a path contains the time or a random name, and nothing of one rank."""
    origins = list(_origins(guards, unit, path, 0))
    return any(_CLOCK_NAME.search(text) for text in origins) and not any(
        _OWN_PATH.search(_CLOCK_NAME.sub("", text)) for text in origins
    )


def _origins(guards: RankGuards, unit: Unit, path: ast.expr, depth: int) -> Iterator[str]:
    """Yield the text of an expression and of what its names were assigned or passed."""
    yield ast.unparse(path)
    if depth == _MAX_STEPS:
        return
    for name in names_in(path):
        for value in unit.assigned(name):
            yield from _origins(guards, unit, value, depth + 1)
        for source in _loop_sources(unit, name):
            yield from _origins(guards, unit, source, depth + 1)
        if depth == 0:
            yield from _passed(guards, unit, path, name)


def names_in(node: ast.expr) -> set[str]:
    """Return the variables and attributes of self in an expression."""
    inner = walk(node)
    names = {child.id for child in inner if isinstance(child, ast.Name)}
    return names | {
        ast.unparse(child)
        for child in inner
        if isinstance(child, ast.Attribute)
        and isinstance(child.value, ast.Name)
        and child.value.id == "self"
    }


def _loop_sources(unit: Unit, name: str) -> Iterator[ast.expr]:
    for node in unit.nodes:
        if isinstance(node, (ast.For, ast.comprehension)) and name in names_in(node.target):
            yield node.iter


def _passed(guards: RankGuards, unit: Unit, path: ast.expr, name: str) -> Iterator[str]:
    """Yield what visible callers pass for a parameter."""
    function = unit.function_of(path)
    if function is None:
        return
    parameters = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    if name not in parameters or name in ("self", "cls"):
        return
    position = parameters.index(name) - (parameters[0] in ("self", "cls"))
    for caller, call in guards.callers(unit, function):
        if isinstance(call, ast.Call):
            passed = argument(call, position, name)
            if passed is not None:
                yield ast.unparse(passed)
                for passed_name in names_in(passed):
                    yield from map(ast.unparse, caller.assigned(passed_name))
