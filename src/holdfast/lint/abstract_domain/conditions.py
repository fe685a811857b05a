"""The conditions of tests in a normal form, to recognize equal and opposite ones."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

#: Conditions in normal form, each with whether it holds.
Conditions = frozenset[tuple[str, bool]]
#: Normal form of each comparison, and whether it holds (True) or is negated (False).
_NORMAL_FORMS: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("==", True), ast.NotEq: ("==", False), ast.Is: ("==", True), ast.IsNot: ("==", False),
    ast.In: ("in", True), ast.NotIn: ("in", False), ast.Gt: (">", True), ast.LtE: (">", False),
    ast.Lt: ("<", True), ast.GtE: ("<", False),
}  # fmt: skip
#: The statement of a test.
_KEYWORD = re.compile(r"^(?:if|assert) ")
#: Tests of settings by which a model is whole on each rank, or sharded.
_WHOLE = re.compile(r"NO_SHARD|(?:^|[_. ])(?:use_|enable_)?ddp(?:$|[_. )])", re.IGNORECASE)
_SHARDING = re.compile(r"fsdp|deepspeed|(?<!NO_)shard", re.IGNORECASE)
_SHARDED = re.compile(r"^(?:if )?[\w.]*(?:fsdp|zero_?3|shard)\w*$", re.IGNORECASE)


def is_whole_by(text: str, *, answer: bool) -> bool:
    """Return True if a test with this answer says that the model is whole on each rank."""
    try:
        node = ast.parse(text.removeprefix("if "), mode="eval").body
    except (SyntaxError, ValueError):  # the text was truncated
        return (_WHOLE if answer else _SHARDED).search(text) is not None
    return _is_whole(node, answer=answer)


def excludes_sharding(text: str) -> bool:
    """Return True if ranks differ at a test of several conditions only if the model is whole.

    As in ``is_main or kind == "FSDP"``, which all ranks pass otherwise.
    """
    return (" or " in text or " and " in text) and any(
        is_whole_by(text, answer=answer) for answer in (True, False)
    )


def _is_whole(node: ast.expr, *, answer: bool) -> bool:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_whole(operand, answer=not answer)
        case ast.BoolOp(op=joint, values=values) if isinstance(joint, ast.And) is answer:
            return any(_is_whole(value, answer=answer) for value in values)
        case ast.Compare(ops=[op], comparators=[kind]) if _SHARDING.search(ast.unparse(kind)):
            return isinstance(op, (ast.NotEq, ast.IsNot, ast.NotIn)) is answer
        case _:
            return (_WHOLE if answer else _SHARDED).search(ast.unparse(node)) is not None


@lru_cache(maxsize=256)
def conjuncts_of(text: str) -> Conditions:
    """Return the conditions of a test joined by ``and``, each with whether it must hold."""
    try:
        node = ast.parse(_KEYWORD.sub("", text), mode="eval").body
    except (SyntaxError, ValueError):  # the text was truncated
        return frozenset()
    return frozenset(normal_form(operand) for operand in _operands(node))


def conditions_of_side(text: str, *, answer: bool) -> Conditions:
    """Return the conditions that hold where a test has this answer."""
    parts = conjuncts_of(text)
    if answer:
        return parts
    return frozenset((test, not holds) for test, holds in parts) if len(parts) == 1 else frozenset()


def decided_by(conditions: Conditions, text: str) -> bool | None:
    """Return the answer of a test where these conditions hold; None if they do not decide it."""
    parts = conjuncts_of(text)
    if any((test, not holds) in conditions for test, holds in parts):
        return False
    return True if parts and parts <= conditions else None


def _operands(node: ast.expr) -> list[ast.expr]:
    return node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]


def normal_form(node: ast.expr, *, holds: bool = True) -> tuple[str, bool]:
    """Return the normal form of a test, and whether it must hold for the test to hold."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return normal_form(node.operand, holds=not holds)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _NORMAL_FORMS:
        comparison, same = _NORMAL_FORMS[type(node.ops[0])]
        against = ast.unparse(node.comparators[0])
        if (comparison, against) == (">", "0"):
            comparison, same = "==", not same  # for a rank, > 0 means "not the first"
        if comparison == "in" and against in (
            "[-1, 0]",
            "(-1, 0)",
            "{-1, 0}",
            "[0, -1]",
            "(0, -1)",
        ):
            comparison, against = "==", "0"  # -1: not distributed
        return f"{ast.unparse(node.left)} {comparison} {against}", holds is same
    return ast.unparse(node), holds
