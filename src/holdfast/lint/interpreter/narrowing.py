"""Narrow types after a test: ``model.module if isinstance(model, DDP) else model``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.lint import library
from holdfast.lint.abstract_domain.values import NONE_OBJECT, Value
from holdfast.lint.abstract_state.abstract_objects import (
    ClassObject,
    Instance,
    LibraryInstance,
    LibraryName,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import Class, dotted_name

_WRAPPED = "wrapped:"


class Narrowing(msgspec.Struct, frozen=True):
    """The variable or attribute ``name``, and its value where the test holds and where not."""

    name: str
    yes: Value
    no: Value


def narrow(state: InterpreterState, frame: Frame, test: ast.expr) -> Narrowing | None:
    """Return the narrowing by a test; None for other tests.

    Where nothing remains, the value is unknown: that side is not reached by what is known.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            narrowing = narrow(state, frame, operand)
            if narrowing is None:
                return None
            return Narrowing(narrowing.name, narrowing.no, narrowing.yes)
        case ast.Call(func=ast.Name(id="isinstance"), args=[tested, classes]):
            classes_tested = _tested_classes(state.evaluate(frame, classes))
        case ast.Call(func=ast.Name(id="hasattr"), args=[tested, ast.Constant(value="module")]):
            classes_tested = {_WRAPPED}
        case _:
            return None
    name = dotted_name(tested)
    if not name or not classes_tested:
        return None
    value = state.evaluate(frame, tested)
    passes = [_is_instance(state, obj, classes_tested) for obj in value.objects]
    yes = tuple(
        obj for obj, passed in zip(value.objects, passes, strict=True) if passed is not False
    )
    no = tuple(obj for obj, passed in zip(value.objects, passes, strict=True) if passed is not True)
    programs = [cls for cls in classes_tested if isinstance(cls, Class)]
    if True not in passes and False not in passes and len(programs) == 1:
        yes = (*yes, Instance(programs[0]))  # an object of this class, created anywhere
    elif True not in passes:
        return None
    return Narrowing(name, replace(value, objects=yes), replace(value, objects=no))


@contextmanager
def apply_narrowing(frame: Frame, narrowing: Narrowing | None, *, passed: bool) -> Iterator[None]:
    """Apply the narrowing for one side of the test; undo it unless the name was reassigned."""
    if narrowing is None:
        yield
        return
    names = frame.scope.names
    name = narrowing.name
    value = narrowing.yes if passed else narrowing.no
    saved = names.get(name)
    names[name] = value
    yield
    if names.get(name) is value:
        if saved is None:
            del names[name]
        else:
            names[name] = saved


def _tested_classes(classes: Value) -> set[Any]:
    """Return the tested classes: program classes, and library classes as the tables name them."""
    objects = [obj for item in (classes.items or (classes,)) for obj in item.objects]
    tested: set[Any] = {obj.cls for obj in objects if isinstance(obj, ClassObject)}
    return tested | {
        library.CLASSES.get(obj.name, "") for obj in objects if isinstance(obj, LibraryName)
    } - {""}


def _is_instance(state: InterpreterState, obj: Any, classes: set[Any]) -> bool | None:
    """Return True if the object is an instance of one of these; None if unknown."""
    match obj:
        case Instance(cls=cls):
            return cls in classes or any(base in classes for base in state.symbols.bases(cls))
        case LibraryInstance(name=name):
            return name in classes or (_WRAPPED in classes and name.startswith(_WRAPPED))
        case _:
            return False if obj == NONE_OBJECT else None
