"""Ranks that take turns: some enter a barrier before what follows, the others the same one after it."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

from msgspec.structs import replace

from holdfast.facts.code.effects import Effect, Fork, Try, shape
from holdfast.facts.code.values import by_rank

#: A comparison as one of a smaller kind, and whether it says the opposite.
_ALIKE: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("==", True), ast.NotEq: ("==", False), ast.Is: ("==", True), ast.IsNot: ("==", False),
    ast.In: ("in", True), ast.NotIn: ("in", False), ast.Gt: (">", True), ast.LtE: (">", False),
    ast.Lt: ("<", True), ast.GtE: ("<", False),
}  # fmt: skip


def in_turn(way: Sequence[Effect]) -> frozenset[int]:
    """The identities of forks that pair: who passes the one enters what all others enter at the other."""
    forks = [fork for fork in _forks(way) if fork.test and by_rank(fork.test)]
    found: set[int] = set()
    for at, one in enumerate(forks):
        for other in forks[at + 1 :]:
            if id(one) not in found and id(other) not in found and opposite(one, other):
                found |= {id(one), id(other)}
    return frozenset(found)


def opposite(one: Fork, other: Fork) -> bool:
    """Exactly those ranks enter something at one of these that do not at the other, and it is the same."""
    entered = [_entered(each) for each in (one, other)]
    if entered[0] is None or entered[1] is None or entered[0][0] != entered[1][0]:
        return False
    mine, others = (_parts(each.text.removeprefix("if ")) for each in (one, other))
    apart = mine ^ others
    if mine and entered[0][1] is entered[1][1]:
        return len(apart) == 2 and len({test for test, _ in apart}) == 1
    return bool(mine) and not apart


def told_apart(fork: Fork) -> Fork:
    """The fork without what its second side enters only where no rank at all goes the first.

    ``if not together and first: … elif together: …``: where ``together`` holds all ranks go the same way.
    """
    parts = _parts(fork.text.removeprefix("if "))
    if len(parts) < 2:
        return fork
    denied = {(test, not said) for test, said in parts}
    left = tuple(effect for effect in fork.no if not (isinstance(effect, Fork) and _asks(effect) in denied))
    return fork if len(left) == len(fork.no) else replace(fork, no=left, no_own=-1)


def _asks(fork: Fork) -> tuple[str, bool] | None:
    """The one test of a fork that all ranks answer alike, and that does nothing where it fails."""
    parts = _parts(fork.text.removeprefix("if ")) if not fork.test and not fork.no else frozenset()
    return next(iter(parts)) if len(parts) == 1 else None


def _forks(way: Sequence[Effect]) -> Iterator[Fork]:
    """Forks of the same level: those in guarded blocks, and under tests that all ranks answer alike, too."""
    for effect in way:
        match effect:
            case Fork(test=()):
                yield from _forks((*effect.yes, *effect.no))
            case Fork():
                yield effect
            case Try(body=body, last=last):
                yield from _forks((*body, *last))
            case _:
                pass


def _entered(fork: Fork) -> tuple[Hashable, bool] | None:
    """What one side of a fork enters where the other enters nothing, and which side it is."""
    yes, no = shape(fork.own(fork.yes), rank_only=True), shape(fork.own(fork.no), rank_only=True)
    if bool(yes) is bool(no):
        return None
    return (yes or no), bool(yes)


@lru_cache(maxsize=256)
def _parts(text: str) -> frozenset[tuple[str, bool]]:
    """The tests that have to hold, all of them, each with whether it is said as it is or denied."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):  # it was cut short
        return frozenset()
    return frozenset(_part(each) for each in _all_of(node))


def _all_of(node: ast.expr) -> list[ast.expr]:
    return node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]


def _part(node: ast.expr, *, said: bool = True) -> tuple[str, bool]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _part(node.operand, said=not said)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ALIKE:
        how, same = _ALIKE[type(node.ops[0])]
        against = ast.unparse(node.comparators[0])
        if (how, against) == (">", "0"):
            how, same = "==", not same  # of a rank: it is not the first
        if how == "in" and against in ("[-1, 0]", "(-1, 0)", "{-1, 0}", "[0, -1]", "(0, -1)"):
            how, against = "==", "0"  # -1: nobody else is there
        return f"{ast.unparse(node.left)} {how} {against}", said is same
    return ast.unparse(node), said
