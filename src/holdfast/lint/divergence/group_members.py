"""Compare the literal members of a group with tests of the rank."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import islice

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    GroupScope,
    Operation,
    iter_operations,
)
from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    Taint,
    TaintKind,
    Value,
    taint_kinds,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.patterns.scopes import child_nodes, walk_nodes

#: Maximum number of group members, and of operations on a path, to check.
_MAX_MEMBERS, _MAX_OPERATIONS = 4096, 2000


def literal_ranks(node: ast.expr | None) -> tuple[int, ...]:
    """Return the ranks in ``[0, 1]``, ``range(4)`` or ``list(range(4))``; empty otherwise."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id in ("list", "tuple") and len(node.args) == 1:
            return literal_ranks(node.args[0])
        bounds = _literal_integers(node.args)
        if node.func.id == "range" and 0 < len(bounds) == len(node.args) <= 2:
            literal_range = range(*bounds)
            return tuple(literal_range) if len(literal_range) <= _MAX_MEMBERS else ()
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        ranks = _literal_integers(node.elts)
        return tuple(ranks) if len(ranks) == len(node.elts) else ()
    return ()


def _literal_integers(nodes: Sequence[ast.expr]) -> list[int]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
    ]


def group_kind(call: LibraryCall, ranks: Value | None) -> tuple[str, bool]:
    """Return the name of the kind of groups that ``new_group`` creates, and whether it has several.

    It has, if the members depend on a loop around the call or on the rank. The name is the place of
    the call, or empty if the members are passed to the function from elsewhere.
    """
    node = call.arguments.node(0, "ranks")
    if node is None or call.frame.tree is None:
        return "", False
    nodes = walk_nodes(*child_nodes(call.frame.tree))
    used = _names_behind(node, nodes)
    varying = ranks is not None and bool(taint_kinds(ranks.content) & RANK_KINDS)
    parameters = call.frame.function.parameters if call.frame.function is not None else ()
    shared = bool(used & set(parameters)) and not used & _loop_targets(call.node, nodes)
    split = varying or bool(used & _loop_targets(call.node, nodes))
    return "" if shared else f"{call.location.file}:{call.location.line}", split


def _names_behind(node: ast.AST, nodes: Sequence[ast.AST]) -> set[str]:
    """Return the variables from which an expression is computed."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    for _ in range(3):
        for each in nodes:
            if isinstance(each, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id in found for target in each.targets
            ):
                found |= {part.id for part in ast.walk(each.value) if isinstance(part, ast.Name)}
    return found


def _loop_targets(call: ast.AST, nodes: Sequence[ast.AST]) -> set[str]:
    """Return the variables of the loops and comprehensions around a call."""
    targets: list[ast.expr] = []
    for each in nodes:
        if isinstance(each, (ast.For, ast.ListComp, ast.DictComp)) and any(
            part is call for part in ast.walk(each)
        ):
            targets += (
                [each.target]
                if isinstance(each, ast.For)
                else [generator.target for generator in each.generators]
            )
    return {
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    }


def find_excluded_members(branch: Branch) -> tuple[Operation, tuple[SourceLine, ...]] | None:
    """Return the first collective that only some of its members reach, with its call chain."""
    if branch.rank_test is None:
        return None
    for side, other_side, answer in ((branch.yes, branch.no, True), (branch.no, branch.yes, False)):
        elsewhere = {
            (op.name, op.members) for op, _ in islice(iter_operations(other_side), _MAX_OPERATIONS)
        }
        for op, chain in islice(iter_operations(side), _MAX_OPERATIONS):
            entering = [rank for rank in op.members if branch.rank_test.passes(rank) is answer]
            if (
                entering
                and len(entering) < len(op.members)
                and (op.name, op.members) not in elsewhere
            ):
                return op, chain
    return None


def find_differing_groups(branch: Branch) -> tuple[Operation, tuple[SourceLine, ...]] | None:
    """Return the first group that both sides of a branch create with different members."""
    sides = [
        [
            (op, chain)
            for op, chain in islice(iter_operations(branch.branch_body(side)), _MAX_OPERATIONS)
            if op.name == "new_group" and op.peer
        ]
        for side in (branch.yes, branch.no)
    ]
    for (yes_op, chain), (no_op, _) in zip(*sides, strict=False):
        if yes_op.peer != no_op.peer or yes_op.members != no_op.members:
            return yes_op, chain
    return None


def is_leaders_collective(op: Operation | None, sources: Taint, before: Sequence[Effect]) -> bool:
    """Return True if only node leaders enter a world collective, after one on a sub-group."""
    if (
        op is None
        or op.kind != "collective"
        or op.group is not GroupScope.WORLD
        or taint_kinds(sources) != {TaintKind.LOCAL_RANK}
    ):
        return False
    return any(
        earlier.own_group or earlier.group is GroupScope.SUB
        for earlier, _ in islice(iter_operations(before), _MAX_OPERATIONS)
        if earlier.kind == "collective"
    )
