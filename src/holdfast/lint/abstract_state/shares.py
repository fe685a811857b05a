"""Shares of data: whether each rank's part is equally long, and containers that grow alike.

A share from ``start`` to ``start + size`` is as long on each rank, and so is one between two bounds
that depend on the rank, unless a bound is clamped, selected by the rank, or a multiple of a size
that was rounded up: then the last rank has fewer elements.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from holdfast.lint.abstract_domain.values import CLAMPED, ROUNDED_UP, Value
from holdfast.lint.abstract_state.abstract_objects import LAUNCHER_RANK, Multiple
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import dotted_name

#: Methods that add an element to a container.
_ADDS = frozenset({"append", "appendleft", "add"})


def is_equal_share(
    state: InterpreterState,
    nodes: Sequence[ast.expr | None],
    bounds: Sequence[Value],
    *,
    of_data: bool = False,
) -> bool:
    """Return True if ``range(*bounds)`` has the same length on each rank though its bounds differ.

    ``of_data``: a slice, which ends where the data end.
    """
    if len(bounds) < 2 or not bounds[0].content:
        return False
    if len(bounds) == 3 and not of_data and _fills_rounds(state, nodes[2], bounds):
        return True
    if not bounds[1].content:
        return False
    if any(bound.content for bound in bounds[2:]):
        return False
    limit = ROUNDED_UP if of_data else CLAMPED
    start, stop = nodes[0], nodes[1]
    if isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.Add) and start is not None:
        text = state.unparse(start)
        if text in (state.unparse(stop.left), state.unparse(stop.right)):
            rounded = of_data and ROUNDED_UP in (bounds[0].ragged, bounds[1].ragged)
            return not rounded and bounds[1].ragged <= bounds[0].ragged
    return len(bounds) == 2 and all(bound.ragged < limit for bound in bounds)


def multiples(state: InterpreterState, node: ast.BinOp) -> tuple[Multiple, ...]:
    """Return what divides ``rounds * size``, and ``count - count % size``."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factors = [left, right]
        case ast.BinOp(
            left=count, op=ast.Sub(), right=ast.BinOp(left=divided, op=ast.Mod(), right=size)
        ) if ast.dump(count) == ast.dump(divided):
            factors = [size]
        case _:
            factors = []
    named = [factor for factor in factors if isinstance(factor, (ast.Name, ast.Attribute))]
    return tuple(Multiple(state.unparse(factor)) for factor in named)


def _fills_rounds(state: InterpreterState, step: ast.expr | None, bounds: Sequence[Value]) -> bool:
    """Return True for ``range(rank, rounds * size, size)``."""
    start, stop, by = bounds
    return (
        step is not None
        and start.objects == (LAUNCHER_RANK,)
        and not stop.content
        and not by.content
        and Multiple(state.unparse(step)) in stop.objects
    )


def is_equal_piece(node: ast.Subscript) -> bool:
    """Return True for ``x.split(len(x) // world_size)[rank]``: what is left over is in another."""
    match node.value:
        case ast.Call(
            func=ast.Attribute(attr="split"), args=[ast.BinOp(op=ast.FloorDiv()) as size, *_]
        ):
            return not rounds_up(size)
        case _:
            return False


def is_share_length(frame: Frame, node: ast.BinOp, stop: Value, start: Value) -> bool:
    """Return True for ``self.end - self.start`` as the length of a share that is equally long."""
    return (
        isinstance(node.op, ast.Sub)
        and frame.function is not None
        and frame.function.name == "__len__"
        and bool(stop.content and start.content)
        and max(stop.ragged, start.ragged) < ROUNDED_UP
    )


def divides(node: ast.expr) -> bool:
    """Return True for a division."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def rounds_up(node: ast.BinOp) -> bool:
    """Return True for ``(size + world_size - 1) // world_size``."""
    match node:
        case ast.BinOp(
            left=ast.BinOp(
                left=ast.BinOp(op=ast.Add(), right=added),
                op=ast.Sub(),
                right=ast.Constant(value=1),
            ),
            op=ast.FloorDiv(),
            right=divisor,
        ):
            return ast.dump(added) == ast.dump(divisor)
        case _:
            return False


# ---- containers that grow on both sides of a branch


def grows_on_both_sides(frame: Frame, owner: ast.expr) -> bool:
    """Return True if a branch adds the same keys, or as many elements, on its other side."""
    if not frame.own_control or frame.function is None:
        return False
    alike = frame.function.grown_alike
    if alike is None:
        alike = frame.function.grown_alike = set()
        if not isinstance(frame.function.node, ast.Lambda):
            _collect(frame.function.node.body, alike)
    return id(owner) in alike


def _collect(body: Sequence[ast.stmt], alike: set[int]) -> dict[str, Counter[str]]:
    """Return what a block adds to each container; collect what both sides of a branch add."""
    grown: dict[str, Counter[str]] = {}
    for statement in body:
        added: dict[str, Counter[str]] = {}
        if isinstance(statement, ast.If):
            yes, no = _collect(statement.body, alike), _collect(statement.orelse, alike)
            added = {name: count for name, count in yes.items() if no.get(name) == count}
            alike.update(
                id(node)
                for child in ast.walk(statement)
                for name, _, node in _growth(child)
                if name in added
            )
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            added = _collect(statement.body, alike)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
            child = statement.value if isinstance(statement, ast.Expr) else statement
            for name, what, _ in _growth(child):
                added.setdefault(name, Counter())[what] += 1
        else:
            for name in ("body", "orelse", "finalbody"):
                _collect(getattr(statement, name, ()), alike)
        for name, count in added.items():
            grown.setdefault(name, Counter()).update(count)
    return grown


def _growth(node: ast.AST | None) -> list[tuple[str, str, ast.expr]]:
    """Return the containers that a statement or call adds to: name, what, and the node."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=key) as target]):
            return [(dotted_name(owner), ast.unparse(key), target)]
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _ADDS:
            return [(dotted_name(owner), "", owner)]
        case ast.Yield():
            return [("<yielded>", "", node)]
        case _:
            return []
