"""Find models that are wrapped under another name and then trained without the wrapper."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from msgspec.structs import replace

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.abstract_objects import (
    Instance,
    LibraryInstance,
    LibraryMethod,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState

#: The name of the output of a model without its wrapper.
BARE_OUTPUT = "output:bare"
#: The kind of divergence.
BARE = "bare"


def record_wrapped(state: InterpreterState, call: LibraryCall) -> None:
    """Record the variable or attribute that holds a model which a call wraps."""
    homes = {
        model_home(call.frame, call.arguments.node(0, "module")),
        model_object(call.arguments.get(0, "module")),
    } - {None}
    if not homes <= state.wrapped_models:
        state.wrapped_models |= homes
        state.summaries.record_write("<wrapped>", "")


def with_bare_output(
    state: InterpreterState, frame: Frame, node: ast.Call, called: Value, value: Value
) -> Value:
    """Return the result of a call, marked if it is that of a wrapped model without its wrapper."""
    if not node.args and not node.keywords:
        return value
    unwrapped = any(map(_is_unwrapped, called.objects)) or _is_of_module(state, frame, node.func)
    homes = {model_home(frame, node.func), model_object(called)} - {None}
    if homes:
        state.summaries.record_read("<wrapped>", "")
    is_wrapped = any(
        isinstance(obj, LibraryInstance) and obj.name.startswith("wrapped:")
        for obj in called.objects
    )
    if is_wrapped or model_outputs((value,)) or not (unwrapped or homes & state.wrapped_models):
        return value
    output = LibraryInstance(BARE_OUTPUT, Value(const=frame.location(node)))
    return replace(value, objects=(*value.objects, output))


def record_bare_backward(state: InterpreterState, call: LibraryCall, loss: Value) -> bool:
    """Record a forward pass that no wrapper averages the gradients of; False if there is none."""
    output = next(iter(model_outputs((loss,))), None)
    if output is None or output.name != BARE_OUTPUT or output.wrapped is None:
        return False
    at = output.wrapped.const
    state.summaries.current.divergences.setdefault(
        (BARE, at), Divergence(BARE, at, call.location, "backward", (), by_name=True)
    )
    return True


def _is_unwrapped(obj: object) -> bool:
    """Return True for the model inside DDP, and for its methods: ``unwrap(model).loss``."""
    inner = LibraryInstance("module")
    return obj == inner or (isinstance(obj, LibraryMethod) and obj.owner == inner)


def _is_of_module(state: InterpreterState, frame: Frame, called: ast.expr) -> bool:
    """Return True for a method of the model that DDP wraps: ``model.module.loss``."""
    match called:
        case ast.Attribute(value=ast.Attribute(value=wrapper, attr="module")):
            pass
        case ast.Attribute(
            value=ast.Call(func=ast.Attribute(attr="unwrap_model"), args=[wrapper, *_])
        ):
            pass
        case _:
            return False
    return LibraryInstance("wrapped:ddp") in [
        replace(obj, wrapped=None)
        for obj in state.evaluate(frame, wrapper).objects_of(LibraryInstance)
    ]


def model_object(value: Value | None) -> Hashable:
    """Return the only instance of a class of the program, if it was created at one place."""
    objects = value.objects_of(Instance) if value is not None else []
    return objects[0] if len(objects) == 1 and objects[0].site else None


def model_home(frame: Frame, node: ast.expr | None) -> Hashable:
    """Return what identifies a local variable, or an attribute of the own class."""
    match node:
        case ast.Name(id=name):
            return frame.tree, name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            owner = frame.function.owner if frame.function is not None else None
            return None if owner is None else (owner, name)
        case _:
            return None
