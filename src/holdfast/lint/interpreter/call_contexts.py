"""Signatures that distinguish the calling contexts of a function."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from msgspec.structs import force_setattr

from holdfast.lint.abstract_domain.values import (
    NO_CONSTANT,
    NO_FACTS,
    UNIFORM,
    UNKNOWN,
    DictEntries,
    HeapFacts,
    OpenDict,
    Value,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    FunctionObject,
    GuardedCallable,
    LibraryInstance,
    LibraryMethod,
    TupleElements,
)


def value_signature(value: Value) -> tuple[Any, ...]:
    """Return all of a value that can change what a function does with it."""
    return _FREQUENT.get(id(value)) or _signature(value)


def _signature(value: Value) -> tuple[Any, ...]:
    const = value.const if isinstance(value.const, (bool, int, str, type(None))) else NO_CONSTANT
    return (
        taint_kinds(value.content),
        taint_kinds(value.length),
        taint_kinds(value.order),
        taint_kinds(value.element_length),
        taint_kinds(value.absent),
        value.known,
        value.agreed,
        value.ragged,
        const,
        type(const),
        tuple(_object_signature(obj) for obj in value.objects),
        tuple(value_signature(item) for item in value.items) if value.items is not None else None,
    )


def _object_signature(obj: Any) -> Hashable:
    match obj:
        case FunctionObject(function=function, scope=scope, bound=bound, guard=guard):
            return (
                id(function),
                scope,
                value_signature(bound) if bound is not None else None,
                bool(guard),
            )
        case GuardedCallable(target=inner, positional=positional, named=arguments, guard=guard):
            keywords = tuple((name, value_signature(value)) for name, value in arguments)
            return (
                _object_signature(inner),
                tuple(map(value_signature, positional)),
                keywords,
                bool(guard),
            )
        case DictEntries() | OpenDict() | HeapFacts() | TupleElements():
            return _parts_signature(obj)
        case LibraryInstance(name=name, wrapped=wrapped):
            return (name, value_signature(wrapped) if wrapped is not None else None)
        case LibraryMethod(owner=owner, name=name):
            return (name, _object_signature(owner) if owner is not None else None)
        case _:
            return obj  # type: ignore[no-any-return]


def _parts_signature(obj: DictEntries | OpenDict | HeapFacts | TupleElements) -> Hashable:
    """Return the signature of named parts, which is kept: nested parts occur in many others."""
    if obj.signature is None:
        named: Iterable[tuple[Hashable, Value]]
        match obj:
            case DictEntries(entries=entries):
                named = entries.items()
            case OpenDict(entries=entries, rest=rest):
                named = [*entries.items(), (OpenDict, rest)]
            case HeapFacts(facts=facts):
                named = facts.items()
            case TupleElements(items=items):
                named = enumerate(items)
        signature = frozenset([(name, value_signature(value)) for name, value in named])
        force_setattr(obj, "signature", signature)
    return obj.signature


#: The signatures of values that are passed most often.
_FREQUENT = {id(value): _signature(value) for value in (UNKNOWN, UNIFORM, NO_FACTS)}
