"""What follows from tests together: the tests on a path, as formulas of their parts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product

from holdfast.lint.abstract_domain.conditions import Conditions, conditions_of_side, normal_form
from holdfast.lint.abstract_domain.effects import Branch, Effect, LoopEffect, Try

#: A test and its answer on the path.
Fact = tuple[str, bool]
#: Maximum number of parts of the tests of a path: their answers are tried one by one.
_MAX_PARTS = 8


def excluded_conditions(facts: Sequence[Fact], branch: Branch) -> Conditions:
    """Return the conditions below a branch that cannot hold where ranks answer it differently.

    ``facts`` are the tests that lead to the branch. For example, a rank answers ``main_only and
    is_main`` with yes only if ``in_order`` is false, after ``if main_only and in_order: raise``.
    """
    found: set[tuple[str, bool]] = set()
    below = {each.text for side in (branch.yes, branch.no) for each in _uniform_branches(side)}
    for text in below:
        for answer in (False, True):
            if _is_excluded(tuple(facts), branch.text, (text, answer)):
                found |= conditions_of_side(text, answer=not answer)
    return frozenset(found)


def _uniform_branches(path: Iterable[Effect]) -> Iterator[Branch]:
    """Yield the branches of a path that all ranks answer alike."""
    for effect in path:
        match effect:
            case Branch(yes=yes, no=no, taint=taint):
                if not taint:
                    yield effect
                inner: tuple[Effect, ...] = (*yes, *no)
            case LoopEffect(body=inner) | Try(body=inner):
                pass
            case _:
                continue
        yield from _uniform_branches(inner)


@lru_cache(maxsize=1024)
def _is_excluded(facts: tuple[Fact, ...], test: str, condition: Fact) -> bool:
    """Return True if the condition contradicts the facts together with an answer of the test."""
    return any(not _is_possible((*facts, (test, answer), condition)) for answer in (True, False))


def _is_possible(facts: Sequence[Fact]) -> bool:
    """Return True if the parts of these tests can have answers that lead to all facts."""
    parsed = [(_parse(text), answer) for text, answer in facts]
    formulas = [(formula, answer) for formula, answer in parsed if formula is not None]
    parts = sorted({part for formula, _ in formulas for part in _parts(formula)})
    if len(parts) > _MAX_PARTS or len(formulas) < len(facts):
        return True
    return any(
        all(
            _holds(formula, dict(zip(parts, answers, strict=True))) is answer
            for formula, answer in formulas
        )
        for answers in product((True, False), repeat=len(parts))
    )


@lru_cache(maxsize=1024)
def _parse(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.removeprefix("if "), mode="eval").body
    except (SyntaxError, ValueError):  # the text was truncated
        return None


def _parts(formula: ast.expr) -> Iterator[str]:
    match formula:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _parts(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _parts(operand)
        case _:
            yield normal_form(formula)[0]


def _holds(formula: ast.expr, answers: Mapping[str, bool]) -> bool:
    match formula:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_holds(value, answers) for value in values)
        case ast.BoolOp(values=values):
            return any(_holds(value, answers) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _holds(operand, answers)
        case _:
            part, holds = normal_form(formula)
            return answers[part] is holds
