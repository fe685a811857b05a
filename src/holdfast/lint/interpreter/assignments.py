"""Assign to variables, attributes and elements."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    DICTS,
    NO_CONSTANT,
    UNIFORM,
    UNKNOWN_OBJECT,
    Value,
    combine_values,
    dict_of,
    join_values,
    merge_taint,
    persistent_taint,
    taint_value,
)
from holdfast.lint.abstract_state.abstract_objects import (
    LAUNCHER_RANK,
    SIZED_TENSOR,
    ClassObject,
    Instance,
    ModuleObject,
    RankTest,
    dict_entries,
    is_callable,
)
from holdfast.lint.abstract_state.elements import (
    element_of,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.function_summaries import ITEMS
from holdfast.lint.abstract_state.heap import FactKey, counted, fact_key
from holdfast.lint.abstract_state.mutations import mutate, with_entries
from holdfast.lint.abstract_state.process_stamps import (
    ProcessStamp,
    process_sources,
    without_stamps,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.environment_variables import add_variable
from holdfast.lint.divergence.framework_loops import record_lone_stop
from holdfast.lint.sources.modules import Function, dotted_name

_SIMPLE_NODES = (
    ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.IfExp,
)  # fmt: skip
_SCALAR_FUNCTIONS = frozenset(
    {"int", "float", "bool", "str", "len", "min", "max", "sum", "abs", "round", "any", "all"}
)


#: Dicts that get an entry where one is updated.
_DEFAULTS = re.compile(r"\bdefaultdict\(|\bCounter\(|__missing__")


def assign(
    state: InterpreterState, frame: Frame, target: ast.expr, value: Value, *, updates: bool = False
) -> None:
    """Assign a value to a target; under a tainted condition, the value is tainted.

    ``updates``: ``counts[key] += 1`` adds no key, except to a dict with a default.
    """
    match target:
        case ast.Name(id=name):
            if name in frame.globals:
                control = frame.write_control(name, simple=frame.assigns_simple)
                state.write_variable(frame.scope.module, name, taint_value(value, control))
                fact = state.heap.as_fact(name, value)
                state.set_fact(frame, (frame.scope.module, name), fact)
            else:
                frame.scope.names[name] = value
                frame.assigned_under[name] = frame.control
                if frame.function is None:
                    _assign_module_variable(state, frame, name, value)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            items = (
                value.items
                if value.items is not None and len(value.items) == len(targets)
                else None
            )
            for at, item_target in enumerate(targets):
                inner = items[at] if items is not None else element_of(value)
                assign(
                    state,
                    frame,
                    item_target.value if isinstance(item_target, ast.Starred) else item_target,
                    inner,
                )
        case ast.Attribute():
            _assign_attribute(state, frame, target, value)
        case ast.Subscript(value=owner, slice=index):
            key = state.evaluate(frame, index)
            if isinstance(key.const, str) and dotted_name(owner).endswith("environ"):
                add_variable(frame, frame.location(target), key.const, value)
            held = combine_values(value, Value(content=key.content))
            # an element of a tensor, or one key more on each rank
            grows = not isinstance(key.const, int) and not isinstance(index, (ast.Tuple, ast.Slice))
            grows = grows and LAUNCHER_RANK not in key.objects
            grows = grows and not _has_place(state.evaluate(frame, owner), key)
            grows = grows and not (updates and _DEFAULTS.search(frame.scope.module.text) is None)
            objects = _container_objects(state, frame, owner, key, value)
            mutate(state, frame, target, held, grows=grows, objects=objects)
        case _:
            pass


def _has_place(container: Value, key: Value) -> bool:
    """Return True for a tensor, and for a dict that has an entry of this key on all ranks."""
    entry = (dict_entries(container) or {}).get(key.const) if isinstance(key.const, str) else None
    return container.objects == (SIZED_TENSOR,) or (entry is not None and not entry.absent)


def _assign_module_variable(state: InterpreterState, frame: Frame, name: str, value: Value) -> None:
    """Assign at module level: functions may have run before, whose writes are not repeated."""
    written = frame.scope.module.set_by_functions.get(name)
    fact = None
    if written is not None:
        fact = state.heap.as_fact(name, value)
        frame.scope.names[name] = join_values((value, written))
    state.set_fact(frame, (frame.scope.module, name), fact)


def assign_round(
    state: InterpreterState, frame: Frame, target: ast.expr, node: ast.expr, over: Value
) -> None:
    """Assign one iteration's value; the index of ``enumerate`` is uniform."""
    value = element_of(over)
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name) and called.id == "enumerate":
            assign(state, frame, target.elts[0], UNIFORM)
            assign(state, frame, target.elts[1], value)
            return
    assign(state, frame, target, value)


def _container_objects(
    state: InterpreterState, frame: Frame, owner: ast.expr, key: Value, value: Value
) -> tuple[Any, ...]:
    """Return the objects of a container after an assignment to one of its keys."""
    container = state.evaluate(frame, owner)
    if not isinstance(key.const, str):
        return value.objects
    if any(is_callable(obj) for obj in value.objects):
        for obj in container.objects_of(Instance):
            state.write_attribute(obj, ITEMS, Value(objects=(dict_of({key.const: value}),)))
    entry = taint_value(value, frame.control)
    if _has_place(container, key):  # another value, but still one on all ranks
        entry = replace(entry, absent=value.absent)
    changed = with_entries(container, {key.const: entry})
    objects = tuple(obj for obj in value.objects if not isinstance(obj, DICTS))
    if changed is None:
        return value.objects
    while isinstance(owner, ast.Subscript):  # cfg["model"]["rank"] = rank
        outer, at = state.evaluate(frame, owner.value), state.evaluate(frame, owner.slice).const
        container = replace(container, objects=(changed, *objects))
        whole = with_entries(outer, {at: container}, may_open=True) if isinstance(at, str) else None
        if whole is None:
            break
        changed, container, owner = whole, outer, owner.value
    return (changed, *objects)


def _assign_attribute(
    state: InterpreterState, frame: Frame, target: ast.Attribute, value: Value
) -> None:
    owner = state.evaluate(frame, target.value)
    control = frame.write_control(dotted_name(target), simple=frame.assigns_simple)
    arguments = taint_value(value, control)
    frame.scope.names[dotted_name(target)] = arguments
    _set_attribute_fact(state, frame, owner, target, value)
    if (
        control
        and frame.function is not None
        and _is_reassigned_later(state, frame.function, target)
    ):
        return
    record_lone_stop(state, frame, target, value)
    # a new object differs in its presence only, a number from a checkpoint in its value
    if control and not frame.assigns_simple and not _was_number(owner, target.attr):
        stored = replace(
            value,
            absent=merge_taint(value.absent, persistent_taint(control)),
            agreed=False,
            stored_in=(),
        )
    else:
        stored = replace(arguments, const=value.const, stored_in=())
    for candidate in owner.objects:
        if isinstance(candidate, (Instance, ClassObject)):
            place = candidate if isinstance(candidate, Instance) else candidate.cls
            state.write_attribute(place, target.attr, stored)
    if not any(isinstance(obj, (Instance, ClassObject)) for obj in owner.objects):
        _assign_untyped(state, target, value)
    if target.attr in ("data", "grad"):
        mutate(state, frame, target.value, arguments, grows=False)


def _assign_untyped(state: InterpreterState, target: ast.Attribute, value: Value) -> None:
    """Remember an attribute of an unknown object that has the rank, or a process's own name."""
    key = (dotted_name(target.value).rpartition(".")[2], target.attr)
    if not key[0] or not state.is_small or state.in_tests:
        return
    if value.agreed:  # at this time or another
        named = state.untyped_attributes.get(key)
        if key not in state.agreed_names and named is not None and process_sources(named):
            state.untyped_attributes[key] = without_stamps(replace(named, content=()))
            state.summaries.record_write(*key)
        state.agreed_names.add(key)
    has_rank = value.content and (LAUNCHER_RANK in value.objects or value.objects_of(RankTest))
    stamps = [stamp for stamp in value.objects_of(ProcessStamp) if stamp.is_text]
    if state.starts_ranks:
        stamps = []
    if key in state.untyped_attributes or not (has_rank or stamps):
        return
    if has_rank:
        state.untyped_attributes[key] = replace(value, stored_in=(), const=NO_CONSTANT)
    elif key not in state.agreed_names:
        state.untyped_attributes[key] = Value(known=False, objects=(*stamps, UNKNOWN_OBJECT))
    state.summaries.record_write(*key)


def _was_number(owner: Value, name: str) -> bool:
    """Return True if an attribute was a number or text so far, on all ranks."""
    held = [
        value
        for obj in owner.objects
        if isinstance(obj, (Instance, ClassObject))
        and (value := obj.cls.attributes.get(name)) is not None
    ]
    return bool(held) and all(
        isinstance(value.const, (int, float, str)) and not isinstance(value.const, bool)
        for value in held
    )


def _set_attribute_fact(
    state: InterpreterState, frame: Frame, owner: Value, target: ast.Attribute, value: Value
) -> None:
    """Record what is known of an attribute from here on; ``__init__`` writes it to its site."""
    for module in owner.objects_of(ModuleObject):
        control = frame.write_control(dotted_name(target))
        state.write_variable(module.module, target.attr, taint_value(value, control))
        fact = state.heap.as_fact(target.attr, value)
        state.set_fact(frame, (module.module, target.attr), fact)
    key = fact_key(owner, target.attr)
    if key is not None:
        initializes = frame.function is not None and frame.function.name == "__init__"
        fact = None if initializes else state.heap.as_fact(target.attr, value)
        state.set_fact(frame, key, fact)
    else:
        for obj in owner.objects_of(Instance):
            state.set_fact(frame, (obj, target.attr), None)


def count_up(
    state: InterpreterState, frame: Frame, node: ast.AugAssign, old: Value, change: Value
) -> bool:
    """Execute ``depth += 1`` if ``depth`` counts nested blocks; return False otherwise."""
    count = counted(old, change, node.op)
    match node.target:
        case ast.Name(id=name) if name in frame.globals:
            key: FactKey | None = (frame.scope.module, name)
        case ast.Attribute(value=owner, attr=name):
            key = fact_key(state.evaluate(frame, owner), name)
        case _:
            return False
    if count is None or key is None or name not in state.heap.counters:
        return False
    frame.scope.names.pop(dotted_name(node.target), None)
    state.set_fact(frame, key, count)
    return True


def mark_agreed_attribute(
    state: InterpreterState, frame: Frame, target: ast.Attribute, arguments: ast.expr
) -> None:
    """Mark an attribute as agreed if its old value is an input of the agreement."""
    name = dotted_name(target)
    if not any(
        isinstance(node, ast.Attribute) and dotted_name(node) == name
        for node in ast.walk(arguments)
    ):
        return
    for obj in state.evaluate(frame, target.value).objects:
        if isinstance(obj, Instance) and target.attr not in obj.cls.agreed_attributes:
            obj.cls.agreed_attributes.add(target.attr)
            state.summaries.record_write(obj.cls, target.attr)


def _is_reassigned_later(
    state: InterpreterState, function: Function, target: ast.Attribute
) -> bool:
    """Return True if every path from here sets the attribute again in this function."""
    reassigned = state.reassigned_attributes.get(id(function.node))
    if reassigned is None:
        reassigned = state.reassigned_attributes[id(function.node)] = set()
        if not isinstance(function.node, ast.Lambda):
            _collect_reassigned(function.node.body, reassigned)
    return id(target) in reassigned


def _collect_reassigned(body: Sequence[ast.stmt], reassigned: set[int]) -> None:
    """Collect ids of attribute nodes that a later statement of an enclosing block sets again."""
    later: set[str] = set()
    for statement in reversed(body):
        targets = [
            attribute
            for attribute in getattr(statement, "targets", ())
            if isinstance(attribute, ast.Attribute)
        ]
        leaves = isinstance(statement, ast.If) and any(
            isinstance(node, ast.Return) for node in ast.walk(statement)
        )
        if isinstance(statement, ast.If) and later and not leaves:
            reassigned.update(
                id(node)
                for node in ast.walk(statement)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and dotted_name(node) in later
            )
        later.update(dotted_name(target) for target in targets)
        for name in ("body", "orelse"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list) and not isinstance(
                statement, (ast.FunctionDef, ast.ClassDef)
            ):
                _collect_reassigned(inner, reassigned)


def missing_names(node: ast.If) -> tuple[str, ...]:
    """Return the names that a test finds missing, or empty and about to be filled."""
    emptied = _tested_as_empty(node.test)
    if emptied and any(
        dotted_name(filled) == emptied
        for statement in node.body
        for child in ast.walk(statement)
        for filled in _filled(child)
    ):
        return (emptied,)
    return tested_as_missing(node.test)


def created_later(node: ast.If, within: ast.AST) -> tuple[str, ...]:
    """Return the name in ``if group is not None: return group``, if what follows creates it."""
    end = node.body[-1]
    if node.orelse or not isinstance(end, ast.Return):
        return ()
    match node.test:
        case ast.Compare(left=tested, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            name = dotted_name(tested)
        case ast.Compare(ops=[ast.In()], comparators=[tested]):
            name = dotted_name(tested)
        case ast.Name() | ast.Attribute() if dotted_name(node.test) == dotted_name(end.value):
            name = dotted_name(node.test)
        case _:
            return ()
    creates = any(
        dotted_name(filled) == name
        for child in ast.walk(within)
        if getattr(child, "lineno", 0) > (node.end_lineno or 0)
        for filled in _filled(child)
    )
    return (name,) if name and creates else ()


def _tested_as_empty(test: ast.expr) -> str:
    """Return the name in ``not groups`` or ``len(groups) == 0``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name() | ast.Attribute() as tested):
            return dotted_name(tested)
        case (
            ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id="len"), args=[tested]))
            | ast.Compare(
                left=ast.Call(func=ast.Name(id="len"), args=[tested]),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=0)],
            )
            | ast.Compare(
                left=ast.Call(func=ast.Name(id="len"), args=[tested]),
                ops=[ast.Lt()],
                comparators=[ast.Constant(value=1)],
            )
        ):
            return dotted_name(tested)
        case _:
            return ""


def _filled(node: ast.AST) -> list[ast.expr]:
    """Return what a node assigns to, or adds elements to."""
    match node:
        case ast.Assign(targets=targets):
            return [
                target.value if isinstance(target, ast.Subscript) else target for target in targets
            ]
        case ast.Call(func=ast.Attribute(value=owner, attr="append" | "add" | "update" | "extend")):
            return [owner]
        case _:
            return []


def tested_as_missing(test: ast.expr) -> tuple[str, ...]:
    """Return the names that a test finds missing: ``self.group is None``, ``key not in cache``."""
    match test:
        case ast.Compare(left=tested, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return (dotted_name(tested),)
        case ast.UnaryOp(
            op=ast.Not(),
            operand=ast.Call(
                func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]
            ),
        ):
            return (f"{dotted_name(owner)}.{name}",)
        case ast.Compare(ops=[ast.NotIn()], comparators=[container]):
            if (
                isinstance(container, ast.Call)
                and isinstance(container.func, ast.Attribute)
                and container.func.attr == "keys"
            ):
                container = container.func.value
            return (f"{dotted_name(container)}[]",)
        case ast.BoolOp(op=op, values=values):
            missing_names = [tested_as_missing(value) for value in values]
            if isinstance(op, ast.Or) or all(missing_names):
                return tuple(name for item in missing_names for name in item)
            return ()
        case _:
            return ()


def clear_absence(
    names: dict[str, Value],
    absent: tuple[str, ...],
    before: Mapping[str, Value],
    created: Mapping[str, Value],
) -> None:
    """Clear the absence taint after ``if store is None: store = Store()``."""
    for name in absent:
        value, old = created.get(name), before.get(name)
        if value is not None and old is not None and value is not old and names[name].absent:
            names[name] = replace(names[name], absent=(), content=value.content)


def fills_cache(node: ast.If, absent: tuple[str, ...]) -> bool:
    """Return True for ``if key not in groups: groups[key] = dist.new_group(ranks)``."""
    containers = {name.removesuffix("[]") for name in absent if name.endswith("[]")}
    return bool(containers) and any(
        isinstance(child, ast.Subscript)
        and isinstance(child.ctx, ast.Store)
        and dotted_name(child.value) in containers
        for statement in node.body
        for child in ast.walk(statement)
    )


def returns_cached(node: ast.If) -> bool:
    """Return True for ``if key in groups: return groups[key]``."""
    last = node.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Subscript):
        return False
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    container, key = ast.unparse(last.value.value), ast.unparse(last.value.slice)
    return any(
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.In)
        and (ast.unparse(test.left), ast.unparse(test.comparators[0])) == (key, container)
        for test in tests
    )


def is_simple_expression(node: ast.expr) -> bool:
    """Return True for a flag, number or name rather than a newly created object."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _SCALAR_FUNCTIONS
    return isinstance(node, _SIMPLE_NODES)
