"""Mutate containers, attributes and variables in place."""

from __future__ import annotations

import ast
from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    DICTS,
    MAX_OBJECTS,
    NO_CONSTANT,
    DictEntries,
    OpenDict,
    Taint,
    TaintKind,
    Value,
    combine_values,
    dict_of,
    is_rank_only,
    join_values,
    merge_taint,
    open_dict_of,
    persistent_taint,
    taint_value,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    TRIMMED,
    ClassObject,
    FunctionObject,
    GuardedCallable,
    Instance,
    LibraryInstance,
    TupleElements,
    dict_entries,
    is_callable,
    mark_contained,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.elements import (
    HELD,
    with_held_data,
)
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
    if _add_handlers(state, frame, owner, value, objects):
        return
    grows = grows and not grows_on_both_sides(frame, owner)
    keys: Taint = ()
    is_keyed = _is_unknown_entry(state, frame, owner)
    while True:
        if isinstance(owner, ast.Subscript):
            keys, owner = merge_taint(keys, _key_taint(state, frame, owner)), owner.value
        elif (container := _default_owner(owner)) is not None:
            owner = container
        else:
            break
    old = state.evaluate(frame, owner)
    control = persistent_taint(frame.write_control(dotted_name(owner)))
    if (
        isinstance(owner, ast.Name)
        and frame.function is not None
        and owner.id not in frame.function.parameters
    ):
        # all ranks that did not leave the function have it, or those that assigned it
        left = [source for source in frame.exited if source not in frame.skipped]
        passed = (*left, *frame.assigned_under.get(owner.id, ()))
        control = tuple(source for source in control if source not in passed)
    if (
        control
        and is_rank_only(control)
        and objects
        and all(isinstance(obj, (Instance, FunctionObject)) for obj in objects)
    ):
        # a hook that only some ranks have
        objects = tuple(GuardedCallable(obj, guard=control) for obj in objects)
        control = ()
    new = replace(
        old,
        content=merge_taint(old.content, persistent_taint(value.content), control),
        length=merge_taint(old.length, keys, added, control if grows else ()),
        order=merge_taint(old.order, frame.loop_order),
        element_length=merge_taint(old.element_length, persistent_taint(value.element_length)),
        known=old.known and value.known,
        objects=_contained_after(old, objects, replaces=bool(value.content or control or objects)),
        items=None,
        const=NO_CONSTANT,
        agreed=old.agreed and not frame.control,
    )
    if is_keyed and old.objects_of(DICTS):
        rest = replace(new, objects=tuple(o for o in new.objects if not isinstance(o, OpenDict)))
        new = replace(rest, objects=(OpenDict({}, rest), *rest.objects)[:MAX_OBJECTS])
    if new != old:
        store_mutation(state, frame, owner, new)


def _add_handlers(
    state: InterpreterState, frame: Frame, owner: ast.expr, value: Value, objects: tuple[Any, ...]
) -> bool:
    """Add callables to the list that a dict has under a known key: not to those of other keys."""
    if not isinstance(owner, ast.Subscript) or not objects or value.content:
        return False
    if frame.write_control(dotted_name(owner.value)):
        return False
    container, key = state.evaluate(frame, owner.value), state.evaluate(frame, owner.slice).const
    entries = dict_entries(container)
    if (
        entries is None
        or not isinstance(key, str)
        or not all(isinstance(obj, Instance) or is_callable(obj) for obj in objects)
    ):
        return False
    old = entries.get(key, Value())
    added = _contained_after(old, objects, replaces=True)
    changed = dict_of(entries | {key: replace(old, objects=added, items=None, const=NO_CONSTANT)})
    store_mutation(state, frame, owner.value, replace(container, objects=(changed,), items=None))
    return True


def with_entries(
    container: Value, held: dict[str, Value], *, may_open: bool = False
) -> DictEntries | OpenDict | None:
    """Return a dict with new entries, apart from its others; None for other containers.

    ``may_open``: also if no entry differs between ranks, where the others are unknown.
    """
    named = dict_entries(container)
    if named is not None:
        return dict_of(named | held)
    for known in container.objects_of(OpenDict):
        return open_dict_of(known.entries | held, known.rest)
    differs = any(value.content or value.length or value.absent for value in held.values())
    if not (differs or may_open) or container.items is not None:
        return None
    return None if container.objects_of(Instance) else open_dict_of(held, container)


def _default_owner(node: ast.expr) -> ast.expr | None:
    """Return the dict in ``hooks.setdefault(name, [])``, whose entry is changed."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="setdefault")):
            return owner
        case _:
            return None


def updated_dict(
    container: Value, arguments: Arguments, control: Taint
) -> DictEntries | OpenDict | None:
    """Return a dict after ``update(**arguments)`` under a test; None for other containers."""
    held: dict[str, Value] = dict(arguments.named)
    others: list[Value] = [arguments.starred] if arguments.starred is not None else []
    for value in arguments.positional:
        named = dict_entries(value)
        if named is not None:
            held |= named
            continue
        others.append(value)
        for known in value.objects_of(OpenDict):
            held |= known.entries
            others[-1] = known.rest
    held = {name: taint_value(value, control) for name, value in held.items()}
    changed = with_entries(container, held)
    if changed is None or not others:
        return changed
    rest = [changed.rest] if isinstance(changed, OpenDict) else []
    entries = {
        name: value if name in held else join_values([value, *map(_entry_of, others)], control)
        for name, value in changed.entries.items()
    }
    return open_dict_of(entries, join_values([*rest, *others]))


def _entry_of(container: Value) -> Value:
    """Return what any entry of another dict may be."""
    return Value(container.content, known=False)


def _is_unknown_entry(state: InterpreterState, frame: Frame, node: ast.expr) -> bool:
    """Return True for an entry of a variable or attribute, by a key that is not known."""
    return (
        isinstance(node, ast.Subscript)
        and not isinstance(node.value, ast.Subscript)
        and not isinstance(state.evaluate(frame, node.slice).const, str)
    )


def _contained_after(old: Value, objects: tuple[Any, ...], *, replaces: bool) -> tuple[Any, ...]:
    """Return the objects of a container after ``objects`` were put into it."""
    contained = (
        *(
            obj
            for obj in old.objects
            if not isinstance(obj, (DictEntries, TupleElements))
            and not (isinstance(obj, OpenDict) and replaces)
        ),
        *(
            obj
            for obj in objects
            if isinstance(
                obj, (Instance, FunctionObject, ClassObject, GuardedCallable, DictEntries, OpenDict)
            )
        ),
        *model_outputs((Value(objects=objects),)),
        *(obj for obj in objects if isinstance(obj, LibraryInstance) and obj.name == HELD),
        *((TRIMMED,) if TRIMMED in objects else ()),
    )
    return mark_contained(tuple(dict.fromkeys(contained)))[:MAX_OBJECTS]


def sort_in_place(state: InterpreterState, call: LibraryCall) -> None:
    """Give a list one order on all ranks."""
    if call.receiver_node is not None and call.receiver.order:
        store_mutation(state, call.frame, call.receiver_node, replace(call.receiver, order=()))


def change_in_place(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the tensor that ``total.add_(value)`` changes, which then depends on both."""
    changed = combine_values(*map(with_held_data, call.arguments.all_values))
    data = state.taint_source(call.frame, TaintKind.DATA, call.node)
    batch = any(BATCH in value.objects for value in call.arguments.all_values)
    change = replace(
        changed, content=merge_taint(changed.content, data if batch else ()), length=()
    )
    if call.receiver_node is not None:
        mutate(state, call.frame, call.receiver_node, change, grows=False)
    return replace(combine_values(call.receiver, change), objects=call.receiver.objects)


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
