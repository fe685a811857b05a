"""Merge variables after branches, loop iterations and exception handlers."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    NONE_OBJECT,
    Taint,
    Value,
    is_rank_only,
    join_values,
    taint_value,
)
from holdfast.lint.abstract_state.abstract_objects import LAUNCHER_RANK
from holdfast.lint.divergence.single_process import as_uniform
from holdfast.lint.sources.modules import dotted_name


def restore_names(names: dict[str, Value], new: Mapping[str, Value]) -> None:
    """Replace the variables of a scope in place."""
    names.clear()
    names.update(new)


def merge_branches(
    names: dict[str, Value],
    after_yes: Mapping[str, Value],
    differs: Taint,
    *,
    multiple: bool | None = None,
    may_be_single: bool = False,
) -> None:
    """Merge both sides of a branch into ``names``.

    ``multiple`` is the test's answer for several processes: the side of a single process is
    uniform. ``may_be_single``: a value agreed on the first side need not be agreed on the second,
    as there may be one process, or as all ranks know that they do not need it.
    """
    for name in after_yes.keys() | names.keys():
        yes_value, no_value = after_yes.get(name), names.get(name)
        if yes_value is not no_value:
            values = [value for value in (yes_value, no_value) if value is not None]
            if multiple is not None and len(values) == 2:
                values[multiple] = as_uniform(values[multiple], values[not multiple])
            elif may_be_single and len(values) == 2 and values[0].agreed:
                values[1] = as_uniform(values[1], values[0])
            names[name] = (
                join_values(values, differs)
                if len(values) == 2
                else taint_value(values[0], differs)
            )


def take_sent_objects(
    node: ast.If,
    within: ast.AST,
    names: dict[str, Value],
    after_yes: dict[str, Value],
    differs: Taint,
) -> None:
    """Take over the variables that one side has received from the other: all ranks have them.

    ``if rank != 0: stop = box[0]``, where the list was made from ``stop`` and broadcast.
    """
    sides = ((node.body, after_yes), (node.orelse, names)) if differs else ()
    for receiver, received in sides:
        for name, boxes in _received_names(receiver).items():
            if name in received and received[name].agreed and _sends(within, receiver, name, boxes):
                names[name] = after_yes[name] = received[name]


def _received_names(statements: Sequence[ast.stmt]) -> dict[str, set[str]]:
    """Return the variables that statements assign, each with all variables it is computed from."""
    sources: dict[str, set[str]] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign):
            read = _names_in(statement.value)
            origins = read.union(*(sources.get(name, ()) for name in read))
            for target in statement.targets:
                sources.update(dict.fromkeys(_names_in(target), origins))
    return sources


def _sends(
    within: ast.AST, receiver: Sequence[ast.stmt], name: str, boxes: Collection[str]
) -> bool:
    """Return True if code outside the receiving side makes one of these variables from ``name``."""
    received = {id(child) for statement in receiver for child in ast.walk(statement)}
    return any(
        isinstance(child, ast.Assign)
        and id(child) not in received
        and dotted_name(child.targets[0]) in boxes
        and name in _names_in(child.value)
        for child in ast.walk(within)
    )


def _names_in(node: ast.expr) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def drop_none(names: dict[str, Value], test: ast.expr) -> None:
    """Drop None after ``if group is None: return``: ranks that had it do not continue."""
    if not (
        isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and len(test.ops) == 1
    ):
        return
    name, comparator = dotted_name(test.left), test.comparators[0]
    value = names.get(name)
    if (
        value is None
        or not (isinstance(comparator, ast.Constant) and comparator.value is None)
        or NONE_OBJECT not in value.objects
    ):
        return
    objects = tuple(obj for obj in value.objects if obj != NONE_OBJECT)
    if objects and is_rank_only(value.content) and LAUNCHER_RANK not in objects:
        names[name] = replace(value, content=(), objects=objects)


def merge_loop_entry(
    names: dict[str, Value], before: Mapping[str, Value], condition: Taint = ()
) -> None:
    """Join the variables before a loop with those after an iteration."""
    for name, value in before.items():
        if name in names and names[name] is not value:
            names[name] = join_values((value, names[name]), condition)


def taint_by_handler(value: Value, normal: Value | None, fault: Taint) -> Value:
    """Taint a variable that the handler leaves different from the block."""
    return value if normal is None or normal == value else taint_value(value, fault)
