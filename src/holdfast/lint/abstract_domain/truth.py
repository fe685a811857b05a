"""Values as answers of a test."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    NO_CONSTANT,
    NONE_OBJECT,
    UNKNOWN_OBJECT,
    TaintKind,
    Value,
    merge_taint,
)

#: Kinds by which each rank filters its own data, possibly to nothing.
_SELECTING_KINDS = frozenset({TaintKind.DATA, TaintKind.CLOCK})


def is_none(value: Value) -> bool | None:
    """Return whether a value is None; None if unknown."""
    if value.const is not NO_CONSTANT:
        return value.const is None
    if value.items is not None:
        return False
    if value.objects:
        if NONE_OBJECT not in value.objects and UNKNOWN_OBJECT not in value.objects:
            return False
        return None
    return None


def as_test(value: Value) -> Value:
    """Return a value as a test, tainted if its absence or emptiness is."""
    if not (value.absent or value.length):
        return value
    emptied = tuple(source for source in value.length if source.kind in _SELECTING_KINDS)
    return replace(value, content=merge_taint(value.content, value.absent, emptied))


def truth_value(value: Value) -> bool | None:
    """Return a value's truth; None if unknown."""
    if value.const is not NO_CONSTANT:
        try:
            return bool(value.const)
        except Exception:  # noqa: BLE001 - a constant of the program under test
            return None
    if value.items is not None:
        return bool(value.items)
    return None
