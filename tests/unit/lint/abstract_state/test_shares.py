"""Equal shares by their bounds."""

import ast

import pytest

from holdfast.lint.abstract_domain.values import (
    CLAMPED,
    ROUNDED_UP,
    UNIFORM,
    TaintKind,
    TaintSource,
    Value,
)
from holdfast.lint.abstract_state.shares import is_equal_share, rounds_up
from holdfast.lint.abstract_state.state import InterpreterState

RANK = (TaintSource(TaintKind.RANK, "main.py", 1, "rank"),)
OWN, ROUNDED = Value(RANK), Value(RANK, ragged=ROUNDED_UP)
CUT = Value(RANK, ragged=CLAMPED)


def is_equal(text, *bounds, of_data):
    nodes = [ast.parse(part, mode="eval").body for part in text.split(":")]
    return is_equal_share(InterpreterState({}), nodes, bounds, of_data=of_data)


@pytest.mark.parametrize(
    ("text", "bounds", "of_range", "of_data"),
    [
        ("a:b", (OWN, OWN), True, True),
        ("a:b", (OWN, UNIFORM), False, False),
        ("a:b", (ROUNDED, ROUNDED), True, False),
        ("a:b", (OWN, CUT), False, False),
        ("a:a + n", (CUT, CUT), True, True),
        ("a:a + n", (OWN, CUT), False, False),
        ("a:a + n", (ROUNDED, ROUNDED), True, False),
        ("a:a + n:w", (OWN, OWN, UNIFORM), True, True),
        ("a:b:w", (OWN, OWN, UNIFORM), False, False),
        ("a:a + n:w", (OWN, OWN, OWN), False, False),
    ],
)
def test_shares(text, bounds, of_range, of_data):
    assert is_equal(text, *bounds, of_data=False) is of_range
    assert is_equal(text, *bounds, of_data=True) is of_data


@pytest.mark.parametrize(
    ("text", "answer"),
    [("(n + w - 1) // w", True), ("(n + w - 1) // k", False), ("n // w", False)],
)
def test_rounding_up_by_hand(text, answer):
    assert rounds_up(ast.parse(text, mode="eval").body) is answer
