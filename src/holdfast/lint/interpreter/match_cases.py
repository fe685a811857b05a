"""Rewrite ``match`` as the chain of tests that it is, so that branches are judged in one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def as_tests(node: ast.Match) -> list[ast.stmt]:
    """Return ``if`` and ``elif`` statements for the cases; locations are those of the cases.

    A pattern that is no value, class, alternative or sequence of such becomes a test of the
    subject: whether it matches depends on it.
    """
    chain: list[ast.stmt] = []
    for case in reversed(node.cases):
        test = _conjunction([*_tests(node.subject, case.pattern), *filter(None, [case.guard])])
        captured = [
            ast.Assign([ast.Name(name, ast.Store())], node.subject)
            for name in _captures(case.pattern)
        ]
        body = [*captured, *case.body]
        if test is None:
            chain = body
        else:
            chain = [ast.copy_location(ast.If(test, body, chain), case.pattern)]
    return [ast.fix_missing_locations(ast.copy_location(item, item)) for item in chain]


def _conjunction(tests: Sequence[ast.expr]) -> ast.expr | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return ast.copy_location(ast.BoolOp(ast.And(), list(tests)), tests[0])


def _tests(subject: ast.expr, pattern: ast.pattern) -> Iterator[ast.expr]:
    """Yield what must hold for a pattern to match; nothing if it always does."""
    test: ast.expr = subject
    match pattern:
        case ast.MatchAs(pattern=None) | ast.MatchStar():
            return
        case ast.MatchAs(pattern=inner) if inner is not None:
            yield from _tests(subject, inner)
            return
        case ast.MatchSequence(patterns=parts) if isinstance(subject, ast.Tuple) and len(
            parts
        ) == len(subject.elts):
            for element, part in zip(subject.elts, parts, strict=True):
                yield from _tests(element, part)
            return
        case ast.MatchValue(value=value):
            test = ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchSingleton(value=value):
            test = ast.Compare(subject, [ast.Is()], [ast.Constant(value)])
        case ast.MatchClass(cls=cls):
            test = ast.Call(ast.Name("isinstance", ast.Load()), [subject, cls], [])
        case ast.MatchOr(patterns=parts):
            either = [_conjunction(list(_tests(subject, part))) for part in parts]
            if None in either:
                return
            test = ast.BoolOp(ast.Or(), [part for part in either if part is not None])
    yield ast.copy_location(test, pattern) if test is not subject else test


def _captures(pattern: ast.pattern) -> Iterator[str]:
    for node in ast.walk(pattern):
        name = getattr(node, "rest", None) or getattr(node, "name", None)
        if isinstance(name, str):
            yield name
