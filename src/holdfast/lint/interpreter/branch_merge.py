"""Merge variables after branches, loop iterations and exception handlers."""

from __future__ import annotations

import ast
from collections.abc import Mapping

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


def take_sent_object(
    node: ast.If, within: ast.AST, names: dict[str, Value], after_yes: Mapping[str, Value]
) -> None:
    """Take over the variable of ``if rank != 0: stop = box[0]``, which the root has sent."""
    name = _sent_object(node, within)
    if name and after_yes[name].agreed:
        names[name] = after_yes[name]


def _sent_object(node: ast.If, within: ast.AST) -> str:
    """Return the variable that is taken from a list which was made from it."""
    match node:
        case ast.If(
            body=[
                ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Subscript(value=ast.Name(id=box), slice=ast.Constant(value=0)),
                )
            ],
            orelse=[],
        ):
            sent = any(
                isinstance(child, ast.Assign)
                and isinstance(child.value, ast.List)
                and dotted_name(child.targets[0]) == box
                and any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(child))
                for child in ast.walk(within)
            )
            return name if sent else ""
        case _:
            return ""


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
