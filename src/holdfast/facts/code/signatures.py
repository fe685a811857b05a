"""By what two runs of one function are told apart: all of its arguments that can change what it does."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from holdfast.facts.code.things import Applied, Func, Made, Partial, Rows
from holdfast.facts.code.values import MISSING, Given, Value, kinds_of


def signature(value: Value) -> tuple[Any, ...]:
    """All of a value that can change what a function does with it."""
    const = value.const if isinstance(value.const, (bool, int, str, type(None))) else MISSING
    return (
        kinds_of(value.content),
        kinds_of(value.length),
        kinds_of(value.order),
        kinds_of(value.inner),
        kinds_of(value.absent),
        value.known,
        value.agreed,
        const,
        type(const),
        tuple(_mark(thing) for thing in value.things),
        tuple(signature(each) for each in value.items) if value.items is not None else None,
    )


def _mark(thing: Any) -> Hashable:
    match thing:
        case Func(function=function, scope=scope, bound=bound, guard=guard):
            return (id(function), scope, signature(bound) if bound is not None else None, bool(guard))
        case Applied(thing=inner, positional=positional, named=given, guard=guard):
            ahead = tuple((name, signature(value)) for name, value in given)
            return (_mark(inner), tuple(map(signature, positional)), ahead, bool(guard))
        case Given() | Rows():
            held = thing.named.items() if isinstance(thing, Given) else enumerate(thing.items)
            return tuple((name, signature(value)) for name, value in held)
        case Made(name=name, holds=holds):
            return (name, signature(holds) if holds is not None else None)
        case Partial(owner=owner, name=name):
            return (name, _mark(owner) if owner is not None else None)
        case _:
            return thing  # type: ignore[no-any-return]
