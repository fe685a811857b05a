"""Find micro-batches that an optimizer step follows although their gradients are not averaged.

The tests of ``no_sync`` and of the step are evaluated for the first micro-batches.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, walk_nodes

_ROUNDS, _WINDOWS, _MAX_DEPTH = 12, (2, 3, 4), 4
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mod: operator.mod, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_Test = tuple[ast.expr, bool]


def find_unaveraged_steps(scope: CodeScope) -> Iterator[Divergence]:
    """Yield backward passes under ``no_sync`` in the rounds of a loop that end in a step."""
    for loop in scope.nodes:
        if isinstance(loop, ast.For) and (counter := _counter(loop)):
            yield from _Loop(scope, loop, *counter).find()


def _counter(loop: ast.For) -> tuple[str, int] | None:
    """Return the variable that counts the rounds, and the number of the first."""
    match loop:
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=name), *_]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[_, *rest], keywords=keywords),
        ):
            start = [*rest, *(keyword.value for keyword in keywords)]
        case ast.For(
            target=ast.Name(id=name),
            iter=ast.Call(func=ast.Name(id="range"), args=[*rest, _], keywords=[]),
        ):
            start = rest
        case _:
            return None
    match start:
        case []:
            return name, 0
        case [ast.Constant(value=int() as first)]:
            return name, first
        case _:
            return None


class _Loop:
    """A loop over micro-batches; ``counter`` is the variable that counts them from ``start``."""

    def __init__(self, scope: CodeScope, loop: ast.For, counter: str, start: int) -> None:
        self._scope, self._loop, self._counter, self._start = scope, loop, counter, start
        self._divisors: set[str] = set()
        self._nodes = walk_nodes(*loop.body)
        self._parents = {
            child: node for node in self._nodes for child in ast.iter_child_nodes(node)
        }
        assigned: dict[str, list[ast.expr]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned.setdefault(node.targets[0].id, []).append(node.value)
        self._assigned = {name: values[0] for name, values in assigned.items() if len(values) == 1}

    def find(self) -> Iterator[Divergence]:
        """Yield the first block with ``no_sync`` in a round with a step."""
        entered = [
            (block, tests)
            for node in self._nodes
            if isinstance(node, ast.Attribute) and node.attr == "no_sync"
            for block in self._blocks(node)
            if (tests := self._tests(node)) and any(map(_is_backward, walk_nodes(*block.body)))
        ]
        steps = [
            (node, tests)
            for node in (self._nodes if entered else ())
            if _is_step(node) and (tests := self._tests(node))
        ]
        for (block, skipped), (step, stepped) in product(entered, steps):
            if self._meet(skipped, stepped):
                text = f"for {ast.unparse(self._loop.target)} in {ast.unparse(self._loop.iter)}"
                location, guard = self._scope.location(block), self._scope.location(step)
                yield Divergence("no-sync-step", location, guard, text, ())
                return

    def _blocks(self, node: ast.AST) -> list[ast.With]:
        """Return the blocks whose context is this one, or a variable that holds it."""
        while node in self._parents:
            parent = self._parents[node]
            if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
                name = parent.targets[0].id
                return [
                    block
                    for block in self._nodes
                    if isinstance(block, ast.With)
                    and any(_is_variable(item.context_expr, name) for item in block.items)
                ]
            if isinstance(parent, ast.With):
                return [parent] if isinstance(node, ast.withitem) else []
            node = parent
        return []

    def _tests(self, node: ast.AST) -> list[_Test]:
        """Return the tests in the loop under which a node runs, with the answer of each."""
        tests = []
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, ast.IfExp) and node is not parent.test:
                tests.append((parent.test, node is parent.body))
            elif isinstance(parent, ast.If) and node is not parent.test:
                tests.append((parent.test, node in parent.body))
            node = parent
        return tests

    def _meet(self, skipped: list[_Test], stepped: list[_Test]) -> bool:
        """Return True if all tests certainly hold in one round, for one length of a window."""
        self._divisors.clear()
        rounds = range(self._start, self._start + _ROUNDS)
        meets = any(
            all(
                (answer := self._value(test, {self._counter: at, "": window})) is not None
                and bool(answer) is wanted
                for test, wanted in (*skipped, *stepped)
            )
            for at, window in product(rounds, _WINDOWS)
        )
        return meets and len(self._divisors) <= 1

    def _value(self, node: ast.expr, known: Mapping[str, int], depth: int = 0) -> int | None:
        """Return the value of an expression of the counter; ``""`` is what it is divided by."""
        match node:
            case ast.Constant(value=int() as value):
                return value
            case ast.Name(id=name) if name in known:
                return known[name]
            case ast.Name(id=name) if name in self._assigned and depth < _MAX_DEPTH:
                return self._value(self._assigned[name], known, depth + 1)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                answer = self._value(operand, known, depth)
                return None if answer is None else not answer
            case ast.BoolOp(op=op, values=values):
                answers = [self._value(value, known, depth) for value in values]
                return _combined(answers, decides=isinstance(op, ast.Or))
            case _:
                return self._operation(node, known, depth)

    def _operation(self, node: ast.expr, known: Mapping[str, int], depth: int) -> int | None:
        match node:
            case (
                ast.BinOp(left=left, op=op, right=right)
                | ast.Compare(left=left, ops=[op], comparators=[right])
            ) if type(op) in _OPERATORS:
                first, second = (self._value(side, known, depth) for side in (left, right))
                if second is None and isinstance(op, ast.Mod):
                    self._divisors.add(ast.unparse(right))
                    second = known[""]
                if first is None or second is None or (isinstance(op, ast.Mod) and not second):
                    return None
                return _OPERATORS[type(op)](first, second)
            case _:
                return None


def _combined(answers: Sequence[int | None], *, decides: bool) -> bool | None:
    """Return the answer of ``or``, which True decides, or of ``and``, which False decides."""
    if any(answer is not None and bool(answer) is decides for answer in answers):
        return decides
    return None if None in answers else not decides


def _is_variable(node: ast.expr, name: str) -> bool:
    """Return True for ``name`` and ``name()``."""
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and called.id == name


def _is_backward(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    )


def _is_step(node: ast.AST) -> bool:
    """Return True for an optimizer step."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and "opt" in ast.unparse(node.func).lower()
    )
