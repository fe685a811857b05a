"""Objects of library classes that hold named values: named tuples, namespaces, copies."""

from __future__ import annotations

import ast

from holdfast.lint.abstract_domain.values import UNIFORM, UNKNOWN, DictEntries, Value, taint_value
from holdfast.lint.abstract_state.abstract_objects import (
    ATTRIBUTES,
    ClassObject,
    Instance,
    LibraryInstance,
    dict_entries,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import Class, dotted_name, make_class


def named_tuple(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the class that ``namedtuple("Context", "rank world")`` defines."""
    fields = call.arguments.get(1, "field_names")
    if fields is None:
        return UNKNOWN
    names = (
        fields.const.replace(",", " ").split()
        if isinstance(fields.const, str)
        else [item.const for item in fields.items or ()]
    )
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
        return UNKNOWN
    return Value(objects=(ClassObject(_record_class(state, call, names)),))


def namespace(state: InterpreterState, call: LibraryCall) -> Value:
    """Return an object whose attributes are the named arguments, or the entries of a dict."""
    entries = dict(call.arguments.named)
    given = call.arguments.get(0, "")
    if given is not None:
        entries = (dict_entries(given) or {}) | entries
    cls = _record_class(state, call, ())
    created = state.heap.allocate(cls, call.node, call.frame.file, call.arguments)
    for name, value in entries.items():
        state.write_attribute(created, name, value)
    kept = given.objects_of(DictEntries) if given is not None else []
    return Value(objects=(created, *kept), known=False)


def set_attribute(state: InterpreterState, call: LibraryCall) -> Value:
    """Model ``setattr(owner, "name", value)``."""
    name, value = call.arguments.get(1, "name"), call.arguments.get(2, "value")
    if name is None or value is None or not isinstance(name.const, str):
        return UNIFORM
    node = call.arguments.node(0, "obj")
    written = f"{dotted_name(node)}.{name.const}" if node is not None else ""
    value = taint_value(value, call.frame.write_control(written))
    if written[:1].isidentifier():
        call.frame.scope.names[written] = value
    _write(state, call.first(), {name.const: value})
    return UNIFORM


def update_attributes(state: InterpreterState, call: LibraryCall) -> Value:
    """Model ``self.__dict__.update(values)``."""
    given = call.arguments.get(0, "")
    entries = dict(call.arguments.named) | (
        (dict_entries(given) if given is not None else {}) or {}
    )
    for owner in call.receiver.objects_of(LibraryInstance):
        if owner.name == ATTRIBUTES and owner.wrapped is not None:
            _write(state, owner.wrapped, entries)
    return UNIFORM


def changed_copy(state: InterpreterState, call: LibraryCall) -> Value:
    """Model ``dataclasses.replace(record, name=value)``."""
    copies = []
    for old in call.first().objects_of(Instance):
        new = state.heap.allocate(old.cls, call.node, call.frame.file, call.arguments)
        kept = {
            name: value
            for name, value in state.heap.attributes(old).items()
            if name not in call.arguments.named
        }
        for name, value in (kept | call.arguments.named).items():
            state.write_attribute(new, name, value)
        copies.append(new)
    return Value(objects=tuple(copies), known=bool(copies))


def same_object(_: InterpreterState, call: LibraryCall) -> Value:
    """Model ``copy.copy`` and ``copy.deepcopy``."""
    return call.first()


def _write(state: InterpreterState, owner: Value, entries: dict[str, Value]) -> None:
    for name, value in entries.items():
        for obj in owner.objects_of(Instance):
            state.write_attribute(obj, name, value)


def _record_class(
    state: InterpreterState, call: LibraryCall, names: list[str] | tuple[()]
) -> Class:
    """Return the class of records that a call creates, the same each time."""
    cls = state.nested_classes.get(id(call.node))
    if cls is None:
        fields = "".join(f"    {name}: object\n" for name in names)
        text = f"class Record{'(NamedTuple)' if names else ''}:\n{fields or '    pass'}"
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.ClassDef)  # noqa: S101 - of the text above
        cls = state.nested_classes[id(call.node)] = make_class(node, call.frame.scope.module)
    return cls
