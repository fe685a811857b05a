"""Mutate containers, attributes and variables in place."""

from __future__ import annotations

import ast
from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    MAX_OBJECTS,
    NO_CONSTANT,
    DictEntries,
    Taint,
    TaintKind,
    Value,
    is_rank_only,
    merge_taint,
    persistent_taint,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    TRIMMED,
    ClassObject,
    FunctionObject,
    GuardedCallable,
    Instance,
    TupleElements,
    dict_entries,
    mark_contained,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.shares import grows_on_both_sides
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import dotted_name


def mutate(
    state: InterpreterState,
    frame: Frame,
    owner: ast.expr,
    value: Value,
    *,
    grows: bool,
    added: Taint = (),
    objects: tuple[Any, ...] = (),
) -> None:
    """Record a mutation of what ``owner`` names; ``added``: the length of what is added differs."""
    grows = grows and not grows_on_both_sides(frame, owner)
    keys: Taint = ()
    while isinstance(owner, ast.Subscript):
        keys, owner = merge_taint(keys, _key_taint(state, frame, owner)), owner.value
    old = state.evaluate(frame, owner)
    control = persistent_taint(frame.write_control(dotted_name(owner)))
    if (
        isinstance(owner, ast.Name)
        and frame.function is not None
        and owner.id not in frame.function.parameters
    ):
        # all ranks that continue here have it
        control = tuple(source for source in control if source not in frame.exited)
    if (
        control
        and is_rank_only(control)
        and objects
        and all(isinstance(obj, (Instance, FunctionObject)) for obj in objects)
    ):
        # a hook that only some ranks have
        objects = tuple(GuardedCallable(obj, guard=control) for obj in objects)
        control = ()
    contained = (
        *(obj for obj in old.objects if not isinstance(obj, (DictEntries, TupleElements))),
        *(
            obj
            for obj in objects
            if isinstance(
                obj, (Instance, FunctionObject, ClassObject, GuardedCallable, DictEntries)
            )
        ),
        *model_outputs((Value(objects=objects),)),
        *((TRIMMED,) if TRIMMED in objects else ()),
    )
    new = replace(
        old,
        content=merge_taint(old.content, persistent_taint(value.content), control),
        length=merge_taint(old.length, keys, added, control if grows else ()),
        order=merge_taint(old.order, frame.loop_order),
        element_length=merge_taint(old.element_length, persistent_taint(value.element_length)),
        known=old.known and value.known,
        objects=mark_contained(tuple(dict.fromkeys(contained)))[:MAX_OBJECTS],
        items=None,
        const=NO_CONSTANT,
        agreed=old.agreed and not frame.control,
    )
    if new != old:
        store_mutation(state, frame, owner, new)


def sort_in_place(state: InterpreterState, call: LibraryCall) -> None:
    """Give a list one order on all ranks."""
    if call.receiver_node is not None and call.receiver.order:
        store_mutation(state, call.frame, call.receiver_node, replace(call.receiver, order=()))


def _key_taint(state: InterpreterState, frame: Frame, node: ast.Subscript) -> Taint:
    """Return why the keys of a dict differ between ranks: a key comes from rank-local data."""
    if dict_entries(state.evaluate(frame, node.value)) is None:
        return ()
    return key_taint(state, frame, state.evaluate(frame, node.slice), node)


def key_taint(state: InterpreterState, frame: Frame, key: Value, node: ast.AST) -> Taint:
    """Return why the keys of a dict, or the elements of a set, differ in number with this one."""
    batch_taint = state.taint_source(frame, TaintKind.DATA, node) if BATCH in key.objects else ()
    return merge_taint(
        tuple(source for source in key.content if source.kind is TaintKind.DATA), batch_taint
    )


def store_mutation(state: InterpreterState, frame: Frame, owner: ast.expr, new: Value) -> None:
    """Store the mutated value of a name or attribute."""
    if isinstance(owner, ast.Name):
        if owner.id in frame.scope.names:
            frame.scope.names[owner.id] = new
            # cfg = dict(cfg): a copy, no longer the caller's object
            if owner.id not in frame.rebound:
                frame.mutated[owner.id] = new
        elif owner.id in frame.scope.module.variables:
            state.write_variable(frame.scope.module, owner.id, new)
    elif isinstance(owner, ast.Attribute):
        frame.scope.names[dotted_name(owner)] = new
        if not new.agreed:
            for obj in state.evaluate(frame, owner.value).objects_of(Instance):
                state.write_attribute(obj, owner.attr, replace(new, stored_in=()))
