"""The line that a loop over epochs lacks: its sampler is told the epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.facts.code.modules import dotted
from holdfast.facts.code.partings import Parting
from holdfast.rules.code.edits import Edit, given_once, scope_of, tree_of

_THROUGH = frozenset({"enumerate", "tqdm", "iter", "zip", "trange"})


def set_epoch(parting: Parting, lines: Sequence[str]) -> Edit | None:
    """``sampler.set_epoch(epoch)`` at the head of the loop, where it is plain what the two are called.

    Only for one loader and one sampler that the function itself makes, once and without a condition in the expression.
    """
    tree = tree_of(lines)
    found = scope_of(tree, parting.place.line, ast.For) if tree is not None else None
    if found is None:
        return None
    scope, loop = found
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or loop.target.id == "_":
        return None
    if not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) not in ("range", "itertools.count", "count"):
        return None
    samplers = {text for name in set(_looped_over(loop)) if (text := _sampler(scope, name))}
    line = _first_line(loop)
    if len(samplers) != 1 or line is None:
        return None
    head = lines[line - 1]
    indent = head[: len(head) - len(head.lstrip())]
    return Edit(line, head, f"{indent}{samplers.pop()}.set_epoch({loop.target.id})", inserts=True)


def _looped_over(loop: ast.For) -> Iterator[str]:
    """Names over which loops in this one go, also through ``enumerate`` and its kin."""
    for node in ast.walk(loop):
        if node is loop or not isinstance(node, ast.For):
            continue
        over: list[ast.expr] = [node.iter]
        if isinstance(node.iter, ast.Call) and dotted(node.iter.func).rpartition(".")[2] in _THROUGH:
            over = node.iter.args
        yield from (each.id for each in over if isinstance(each, ast.Name))


def _sampler(scope: ast.AST, loader: str) -> str:
    """How the sampler of a loader is called in this scope; empty where that is not plain."""
    made = given_once(scope, loader)
    if not isinstance(made, ast.Call) or dotted(made.func).rpartition(".")[2] != "DataLoader":
        return ""
    value = next((each.value for each in made.keywords if each.arg == "sampler"), None)
    if isinstance(value, ast.Name):
        return value.id if _is_sampler(given_once(scope, value.id)) else ""
    return f"{loader}.sampler" if _is_sampler(value) else ""


def _is_sampler(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "DistributedSampler"


def _first_line(loop: ast.For) -> int | None:
    """The line before which a statement may stand; None where the body stands behind the colon."""
    first = loop.body[0]
    decorators = getattr(first, "decorator_list", [])
    line = min([first.lineno, *(each.lineno for each in decorators)])
    last_of_head = loop.iter.end_lineno or loop.iter.lineno
    return line if line > last_of_head else None
