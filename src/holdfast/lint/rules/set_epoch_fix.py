"""Fix that inserts the missing ``set_epoch`` call in a loop over epochs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.edits import Edit, find_statement, parse_lines, single_assignment
from holdfast.lint.sources.modules import dotted_name

_ITERATION_WRAPPERS = frozenset({"enumerate", "tqdm", "iter", "zip", "trange"})


def set_epoch_edit(divergence: Divergence, lines: Sequence[str]) -> Edit | None:
    """Return an edit that inserts ``sampler.set_epoch(epoch)`` at the start of the loop.

    Only for a single loader and sampler that the function itself creates once, unconditionally.
    """
    tree = parse_lines(lines)
    statement = (
        find_statement(tree, divergence.location.line, ast.For) if tree is not None else None
    )
    if statement is None:
        return None
    scope, loop = statement
    if (
        not isinstance(loop, ast.For)
        or not isinstance(loop.target, ast.Name)
        or loop.target.id == "_"
    ):
        return None
    if not isinstance(loop.iter, ast.Call) or dotted_name(loop.iter.func) not in (
        "range",
        "itertools.count",
        "count",
    ):
        return None
    samplers = {
        text for name in set(_inner_loop_names(loop)) if (text := _sampler_expression(scope, name))
    }
    line = _insertion_line(loop)
    if len(samplers) != 1 or line is None:
        return None
    head = lines[line - 1]
    indent = head[: len(head) - len(head.lstrip())]
    return Edit(
        line, head, f"{indent}{samplers.pop()}.set_epoch({loop.target.id})", is_insertion=True
    )


def _inner_loop_names(loop: ast.For) -> Iterator[str]:
    """Yield names that nested loops iterate, also through ``enumerate`` and similar functions."""
    for node in ast.walk(loop):
        if node is loop or not isinstance(node, ast.For):
            continue
        over: list[ast.expr] = [node.iter]
        if (
            isinstance(node.iter, ast.Call)
            and dotted_name(node.iter.func).rpartition(".")[2] in _ITERATION_WRAPPERS
        ):
            over = node.iter.args
        yield from (iterable.id for iterable in over if isinstance(iterable, ast.Name))


def _sampler_expression(scope: ast.AST, loader: str) -> str:
    """Return the expression for a loader's sampler in this scope; empty if unknown."""
    candidate = single_assignment(scope, loader)
    if (
        not isinstance(candidate, ast.Call)
        or dotted_name(candidate.func).rpartition(".")[2] != "DataLoader"
    ):
        return ""
    value = next(
        (keyword.value for keyword in candidate.keywords if keyword.arg == "sampler"), None
    )
    if isinstance(value, ast.Name):
        return value.id if _makes_distributed_sampler(single_assignment(scope, value.id)) else ""
    return f"{loader}.sampler" if _makes_distributed_sampler(value) else ""


def _makes_distributed_sampler(node: ast.expr | None) -> bool:
    return (
        isinstance(node, ast.Call)
        and dotted_name(node.func).rpartition(".")[2] == "DistributedSampler"
    )


def _insertion_line(loop: ast.For) -> int | None:
    """Return the line to insert before; None if the loop body is on the line of the ``for``."""
    first = loop.body[0]
    decorators = getattr(first, "decorator_list", [])
    line = min([first.lineno, *(decorator.lineno for decorator in decorators)])
    last_of_head = loop.iter.end_lineno or loop.iter.lineno
    return line if line > last_of_head else None
