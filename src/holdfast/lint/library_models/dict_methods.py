"""Methods of dicts: one entry, or all keys, values or pairs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    TaintKind,
    Value,
    as_selection,
    combine_values,
    constant_value,
    join_values,
    merge_taint,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    CONTAINED,
    FunctionObject,
    Instance,
    TupleElements,
    dict_entries,
    mark_contained,
    open_entry,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState

#: Kinds of keys of which each process has its own entry.
_OF_PROCESS = frozenset({TaintKind.HOST})


def get(_: InterpreterState, call: LibraryCall) -> Value:
    """Return an entry of a dict, or the default."""
    # a table by process ids has an entry of this process, wherever it runs
    content = merge_taint(
        call.receiver.content,
        *(without_kinds(value.content, _OF_PROCESS) for value in call.arguments.all_values),
    )
    key, named = call.first().const, dict_entries(call.receiver)
    if named is not None and isinstance(key, str):
        default = call.arguments.get(1, "default")
        return (
            named[key] if key in named else default if default is not None else constant_value(None)
        )
    if isinstance(key, str):
        entry, others = open_entry(call.receiver, key)
        if entry is not None or others is not call.receiver:
            default = call.arguments.get(1, "default")
            return entry or combine_values(others, *([default] if default is not None else ()))
        content = as_selection(content)  # entries of one name usually are equal
    absent = merge_taint(
        call.receiver.length,
        *(without_kinds(value.content, _OF_PROCESS) for value in call.arguments.positional),
    )
    return Value(content, length=call.receiver.element_length, absent=absent, known=False)


def items(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the pairs of a dict, whose values may be instances of program classes."""
    named = dict_entries(call.receiver)
    contents = (
        join_values(named.values())
        if named
        else replace(call.receiver, objects=_contained_instances(call.receiver))
    )
    if not (contents.objects or contents.content) or call.arguments.all_values:
        return None
    rows = (TupleElements((_key(call.receiver), contents)),)
    return Value(
        call.receiver.content, call.receiver.length, call.receiver.order, known=False, objects=rows
    )


def keys(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the keys of a dict: different values do not make them different."""
    if call.arguments.all_values:
        return None
    key, receiver = _key(call.receiver), call.receiver
    return Value(key.content, receiver.length, receiver.order, known=False)


def _key(receiver: Value) -> Value:
    """Return a key of a dict: that of a rank's own dict, which was not filled here, may differ."""
    own = as_selection(receiver.content) if not receiver.known else ()
    return Value(tuple(source for source in own if source.kind is not TaintKind.DATA), known=False)


def values(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the values of a dict, if some may be instances of program classes."""
    named = dict_entries(call.receiver)
    objects = join_values(named.values()).objects if named else _contained_instances(call.receiver)
    if objects and not call.arguments.all_values:
        return replace(call.receiver, known=False, objects=mark_contained(objects))
    return None


def _contained_instances(receiver: Value) -> tuple[Any, ...]:
    """Return the instances in a dict."""
    if CONTAINED in receiver.objects:
        return tuple(obj for obj in receiver.objects if isinstance(obj, (Instance, FunctionObject)))
    return ()
