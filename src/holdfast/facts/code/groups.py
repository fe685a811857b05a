"""Who is in a group, where the program says so in numbers, and which of these pass a test of the rank."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import islice

from holdfast.facts.code.effects import Effect, Fork, Group, Op, Place, operations
from holdfast.facts.code.values import Kind, Sources, kinds_of

#: So many members of a group, and so many operations of a way, are looked at.
_MOST_MEMBERS, _MOST = 4096, 2000


def members_of(node: ast.expr | None) -> tuple[int, ...]:
    """The ranks that an expression names: ``[0, 1]``, ``range(4)``, ``list(range(4))``; empty for any other."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id in ("list", "tuple") and len(node.args) == 1:
            return members_of(node.args[0])
        bounds = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, int)]
        if node.func.id == "range" and 0 < len(bounds) == len(node.args) <= 2:
            found = range(*bounds)
            return tuple(found) if len(found) <= _MOST_MEMBERS else ()
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        ranks = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, int)]
        return tuple(ranks) if len(ranks) == len(node.elts) else ()
    return ()


def left_out(fork: Fork) -> tuple[Op, tuple[Place, ...]] | None:
    """The first collective of a group whose members do not all come where it is entered."""
    if fork.picks is None:
        return None
    for side, other, answer in ((fork.yes, fork.no, True), (fork.no, fork.yes, False)):
        elsewhere = {(op.name, op.members) for op, _ in islice(operations(other), _MOST)}
        for op, chain in islice(operations(side), _MOST):
            come = [rank for rank in op.members if fork.picks.passes(rank) is answer]
            if come and len(come) < len(op.members) and (op.name, op.members) not in elsewhere:
                return op, chain
    return None


def made_of_others(fork: Fork) -> tuple[Op, tuple[Place, ...]] | None:
    """The first group that both sides of a fork create, each of other members; those that follow the fork are alike."""
    sides = [
        [(op, chain) for op, chain in islice(operations(fork.own(side)), _MOST) if op.name == "new_group" and op.peer]
        for side in (fork.yes, fork.no)
    ]
    for (one, chain), (other, _) in zip(*sides, strict=False):
        if one.peer != other.peer or one.members != other.members:
            return one, chain
    return None


def by_leaders(op: Op | None, sources: Sources, before: Sequence[Effect]) -> bool:
    """The leaders of all nodes are alone in a collective of all ranks, after one of a smaller group."""
    if op is None or op.kind != "collective" or op.group is not Group.WORLD or kinds_of(sources) != {Kind.LOCAL_RANK}:
        return False
    return any(
        each.own or each.group is Group.SUB
        for each, _ in islice(operations(before), _MOST)
        if each.kind == "collective"
    )
