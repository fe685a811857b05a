"""Iterate over instances of program classes, and find why their lengths may differ."""

from __future__ import annotations

import ast
import re

from msgspec.structs import replace

from holdfast.lint.abstract_domain.effects import Branch, ExitEffect, FunctionCall
from holdfast.lint.abstract_domain.values import MAX_OBJECTS, Taint, Value, join_values, merge_taint
from holdfast.lint.abstract_state.abstract_objects import (
    BOUNDED,
    CONTAINED,
    Instance,
    bound_method,
)
from holdfast.lint.abstract_state.arguments import Arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import Class

#: Library classes whose instances are iterable.
_ITERABLE_BASE = re.compile(
    r"dataset|sampler|loader|datapipe|iterator|iterable|sequence|collection|list$|dict$|tuple$",
    re.IGNORECASE,
)


def length_taint(state: InterpreterState, cls: Class, arguments: Arguments) -> Taint:
    """Return why instances may differ in length: they are sized, and their arguments differ."""
    bases = [base for base in state.symbols.bases(cls) if isinstance(base, str)]
    if not any(_ITERABLE_BASE.search(base) for base in bases) and not is_sized(state, cls):
        return ()
    return merge_taint(
        *(value.length for value in arguments.all_values),
        *(value.content for value in arguments.all_values),
    )


def own_length_taint(
    state: InterpreterState, frame: Frame, node: ast.expr, instance: Instance, otherwise: Taint
) -> Taint:
    """Return the length taint that ``__len__`` or ``__iter__`` of the class itself gives."""
    counted = state.symbols.find_method(instance.cls, "__len__")
    if counted is not None:
        return state.invoke(frame, node, bound_method(counted, instance), Arguments()).content
    with frame.collect_effects():  # effects occur where the instance is iterated
        arguments = _iteration_value(state, frame, node, instance)
    return otherwise if arguments is None else arguments.length


def elements_taken(node: ast.For | ast.AsyncFor) -> dict[str, ast.expr]:
    """Return the loop variable that is an element of a named list or dict, with its name."""
    target = node.target.elts[-1] if isinstance(node.target, ast.Tuple) else node.target
    if not isinstance(target, ast.Name):
        return {}
    match node.iter:
        case ast.Name() | ast.Attribute():
            return {} if isinstance(node.target, ast.Tuple) else {target.id: node.iter}
        case ast.Call(func=ast.Name(id="enumerate" | "reversed"), args=[taken, *_]):
            pass
        case ast.Call(func=ast.Attribute(value=taken, attr="items" | "values"), args=[]):
            pass
        case _:
            return {}
    return {target.id: taken} if isinstance(taken, (ast.Name, ast.Attribute)) else {}


def iterated_value(state: InterpreterState, frame: Frame, node: ast.expr, over: Value) -> Value:
    """Return what is iterated; for an instance of a program class, its ``__iter__`` result."""
    if BOUNDED in over.objects:
        rest = replace(over, objects=tuple(obj for obj in over.objects if obj != BOUNDED))
        return replace(iterated_value(state, frame, node, rest), length=())
    objects = [] if CONTAINED in over.objects else over.objects_of(Instance)
    arguments = {
        candidate: _iteration_value(state, frame, node, candidate) for candidate in objects
    }
    known = {candidate: value for candidate, value in arguments.items() if value is not None}
    if not known:
        ends = [_end_taint(state, frame, node, candidate) for candidate in objects]
        return replace(over, length=merge_taint(over.length, *ends)) if any(ends) else over
    value = join_values(known.values())
    sized = any(
        state.symbols.find_method(candidate.cls, "__len__") is not None for candidate in known
    )
    return replace(
        over,
        content=merge_taint(over.content, value.content),
        length=over.length if sized else merge_taint(over.length, value.length),
        known=over.known and value.known,
        objects=(*(obj for obj in over.objects if obj not in known), *value.objects)[:MAX_OBJECTS],
    )


def _iteration_value(
    state: InterpreterState, frame: Frame, node: ast.expr, instance: Instance
) -> Value | None:
    """Return the result of ``__iter__``; None if the class is its own iterator."""
    method = state.symbols.find_method(instance.cls, "__iter__")
    if method is None or not state.relevance.is_relevant(method):
        return None
    value = state.invoke(frame, node, bound_method(method, instance), Arguments())
    own = any(obj.cls is instance.cls for obj in value.objects_of(Instance))
    return None if own else value


def _end_taint(state: InterpreterState, frame: Frame, node: ast.expr, instance: Instance) -> Taint:
    """Return why ``__next__`` raises StopIteration earlier on some ranks."""
    method = state.symbols.find_method(instance.cls, "__next__")
    if method is None:
        return ()
    with frame.collect_effects() as effects:
        state.invoke(frame, node, bound_method(method, instance), Arguments())
    return merge_taint(
        *(
            branch.taint
            for call in effects
            if isinstance(call, FunctionCall)
            for branch in call.callee.path
            if isinstance(branch, Branch)
            and any(
                isinstance(effect, ExitEffect) and effect.exception == "StopIteration"
                for effect in (*branch.yes, *branch.no)
            )
        )
    )


def is_sized(state: InterpreterState, cls: Class) -> bool:
    """Return True if instances have a length or are iterable."""
    return any(
        state.symbols.find_method(cls, name) is not None
        for name in ("__len__", "__iter__", "__getitem__")
    )
