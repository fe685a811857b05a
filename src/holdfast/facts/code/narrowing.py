"""What a value is on either side of a test of its class: ``model.module if isinstance(model, DDP) else model``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.facts.code import library
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.modules import dotted
from holdfast.facts.code.state import State
from holdfast.facts.code.things import Lib, Made, Obj, Type
from holdfast.facts.code.values import NONE, Value

_WRAPPED = "wrapped:"


class Narrowed(msgspec.Struct, frozen=True):
    """The variable or attribute ``name``, and what it is where the test holds (``yes``), and where not (``no``)."""

    name: str
    yes: Value
    no: Value


def narrowed(state: State, frame: Frame, test: ast.expr) -> Narrowed | None:
    """What a test tells of what it asks; None where it asks something else, or would leave nothing."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            found = narrowed(state, frame, operand)
            return None if found is None else Narrowed(found.name, found.no, found.yes)
        case ast.Call(func=ast.Name(id="isinstance"), args=[asked, classes]):
            wanted = _wanted(state.evaluate(frame, classes))
        case ast.Call(func=ast.Name(id="hasattr"), args=[asked, ast.Constant(value="module")]):
            wanted = {_WRAPPED}
        case _:
            return None
    name = dotted(asked)
    if not name or not wanted:
        return None
    value = state.evaluate(frame, asked)
    passes = [_passes(state, thing, wanted) for thing in value.things]
    yes = tuple(thing for thing, passed in zip(value.things, passes, strict=True) if passed is not False)
    no = tuple(thing for thing, passed in zip(value.things, passes, strict=True) if passed is not True)
    if True not in passes or not no:
        return None
    return Narrowed(name, replace(value, things=yes), replace(value, things=no))


@contextmanager
def taken_for(frame: Frame, found: Narrowed | None, *, passed: bool) -> Iterator[None]:
    """Let the name stand for what it is on one side of the test; where nobody else assigns it, for that side alone."""
    if found is None:
        yield
        return
    names, name, value = frame.scope.names, found.name, found.yes if passed else found.no
    kept = names.get(name)
    names[name] = value
    yield
    if names.get(name) is value:
        if kept is None:
            del names[name]
        else:
            names[name] = kept


def _wanted(classes: Value) -> set[Any]:
    """The classes that are asked for: of the program, and of libraries as the tables call their instances."""
    things = [thing for each in (classes.items or (classes,)) for thing in each.things]
    wanted: set[Any] = {thing.cls for thing in things if isinstance(thing, Type)}
    return wanted | {library.CLASSES.get(thing.name, "") for thing in things if isinstance(thing, Lib)} - {""}


def _passes(state: State, thing: Any, wanted: set[Any]) -> bool | None:
    """Whether this is an instance of one of these; None where that is not known."""
    match thing:
        case Obj(cls=cls):
            return cls in wanted or any(base in wanted for base in state.names.bases(cls))
        case Made(name=name):
            return name in wanted or (_WRAPPED in wanted and name.startswith(_WRAPPED))
        case _:
            return False if thing == NONE else None
