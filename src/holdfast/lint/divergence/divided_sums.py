"""Find sums over the ranks of one group that are divided by the number of ranks of another.

Sources: torch 2.13 distributed_c10d.py: ``all_reduce`` sums over the ranks of its group, and
``ReduceOp.AVG`` divides by their number already.
"""

from __future__ import annotations

import ast

from msgspec.structs import replace

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.abstract_objects import (
    LOCAL_SIZE,
    WORLD_SIZE,
    GroupNumber,
    LibraryMethod,
    SummedOver,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.group_numbers import only_group
from holdfast.lint.divergence.operand_counts import rank_count
from holdfast.lint.sources.modules import last_name

_DIVISIONS = frozenset({"div", "div_", "true_divide", "true_divide_"})
#: Methods whose result has the same elements.
_COPYING_METHODS = frozenset({"item", "clone", "detach", "float", "cpu", "tolist"})
#: Attributes of a parameter that an all_reduce changes in its place.
_PARTS = frozenset({"grad", "data"})


def summed_over(call: LibraryCall, group: Value | None, before: Value) -> SummedOver | None:
    """Return what an all_reduce makes of its tensor; None if not known, or for a second one."""
    if call.name.rpartition(".")[2] != "all_reduce" or _sum_of(before) is not None:
        return None
    node = call.arguments.node(1, "op")
    operation = last_name(node) if node is not None else "SUM"
    if operation not in ("SUM", "AVG"):
        return None
    averaged = operation == "AVG"
    if group is None or group.const is None:
        return SummedOver(None, averaged)
    known = only_group(group)
    if known is None or not (known.world or known.split):
        return None
    return SummedOver(None if known.world else known, averaged)


def _sum_of(value: Value) -> SummedOver | None:
    """Return what a tensor, or the gradient of a parameter, is the sum of."""
    found = value.objects_of(SummedOver)
    if not found:
        for method in value.objects_of(LibraryMethod):
            if method.owner is None and method.name in _PARTS:
                return _sum_of(method.receiver)
    return found[0] if len(found) == 1 else None


def record_division(
    state: InterpreterState, frame: Frame, node: ast.AST, left: Value, right: Value
) -> None:
    """Record a division of a sum over ranks by the number of others."""
    summed = _sum_of(left)
    count = rank_count(right) if summed is not None else None
    if LOCAL_SIZE in right.objects:
        count = LOCAL_SIZE
    if summed is None or count is None or frame.scope.module.is_test:
        return
    ranks = "all ranks" if summed.group is None else "the ranks of a group"
    if summed.averaged:
        message = f"ReduceOp.AVG has divided by the number of {ranks} already: this divides again"
    elif count is LOCAL_SIZE:
        if summed.group is not None:
            return
        message = (
            "a sum over all ranks is divided by the number of ranks of one host: on several hosts "
            "the result is too large"
        )
    elif count is WORLD_SIZE:
        if summed.group is None:
            return
        message = (
            "a sum over the ranks of a group is divided by the number of all ranks: divide by "
            "dist.get_world_size(group)"
        )
    elif not _of_others(summed, count):
        return
    else:
        message = (
            f"a sum over {ranks} is divided by the number of ranks of another group: they differ "
            "if the groups do"
        )
    at, kind = frame.location(node), "habit-result"
    found = Divergence(kind, at, at, "", (), detail=message, by_name=True)
    state.summaries.current.divergences.setdefault((kind, at), found)


def _of_others(summed: SummedOver, count: object) -> bool:
    """Return True for the size of a group of other ranks than those of the sum."""
    if not isinstance(count, GroupNumber) or not count.group.split:
        return False
    group = summed.group
    return group is None or bool(group.name and count.group.name and group.name != count.group.name)


def record_method_division(state: InterpreterState, call: LibraryCall) -> None:
    """Record ``tensor.div_(count)``, see :func:`record_division`."""
    if call.name in _DIVISIONS and call.arguments.positional:
        by = call.arguments.positional[0]
        record_division(state, call.frame, call.node, call.receiver, by)


def keep_sums(call: LibraryCall, value: Value) -> Value:
    """Return the result of a method: with the elements of a sum over ranks, it is that sum."""
    kept = call.receiver.objects_of(SummedOver)[:1] if call.name in _COPYING_METHODS else []
    return replace(value, objects=(*value.objects, *kept)) if kept else value
