"""Models of calls of training frameworks: prepared models, and handlers of engines."""

from __future__ import annotations

from holdfast.lint.abstract_domain.values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    Taint,
    Value,
    is_rank_only,
    merge_taint,
    persistent_taint,
)
from holdfast.lint.abstract_state.abstract_objects import (
    CONFIGURED_MODEL,
    FunctionObject,
    LibraryInstance,
    LibraryName,
    library_class_names,
)
from holdfast.lint.abstract_state.arguments import LibraryCall, positional_arguments
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.library_models.classes import prepare_results

_ENGINE = LibraryInstance("ignite.Engine")
#: The other engines run what the program gives them.
_ENGINES = (_ENGINE.name, "ignite.engine")
#: What registers a handler if called with it.
_REGISTER = Value(objects=(LibraryName("ignite.#handler"),))


def prepare(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return what Accelerate prepared."""
    if call.receiver_class != "accelerate.Accelerator":
        return None
    return prepare_results(state, call.arguments)


def setup(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Return what Fabric set up."""
    if call.receiver_class != "lightning.Fabric":
        return None
    return prepare_results(state, call.arguments)


def unwrap_model(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return a model that is sharded with or without its wrapper, or the one inside DDP."""
    model = call.first("model")
    names = library_class_names(model)
    if CONFIGURED_MODEL.name in names:
        return model
    if "wrapped:ddp" not in names:
        return None
    held = [obj.wrapped for obj in model.objects_of(LibraryInstance) if obj.wrapped is not None]
    inner = tuple(obj for value in held for obj in value.objects if obj is not UNKNOWN_OBJECT)
    return Value(objects=inner or (LibraryInstance("module"),), known=False)


def add_decorated_handler(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Return the decorator that registers a handler of an engine of ignite."""
    return _REGISTER if call.receiver_class in _ENGINES else None


def add_handler(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Run the handler that some ranks register, as they run it later."""
    handler = call.arguments.get(1, "handler")
    if call.receiver_class not in _ENGINES or handler is None:
        return None
    return state.call(
        call.frame,
        call.node,
        _REGISTER,
        positional_arguments(handler),
    )


def supervised_engine(_: InterpreterState, call: LibraryCall) -> Value:
    """Return an engine of ignite whose run needs all ranks: its metrics are reduced."""
    evaluates = call.name.endswith("evaluator")
    metrics = call.arguments.get(1, "metrics")
    if evaluates and (metrics is None or metrics.const is None):
        return UNKNOWN
    return Value(objects=(_ENGINE,), known=False)


def run_handler(state: InterpreterState, call: LibraryCall) -> Value:
    """Run the function that a decorator of an engine registers."""
    handler = call.first()
    for obj in handler.objects:
        if isinstance(obj, FunctionObject):
            count = len(obj.function.parameters)
            state.invoke(call.frame, call.node, obj, positional_arguments(*[UNKNOWN] * count))
    return handler


def create_run(state: InterpreterState, call: LibraryCall) -> Value:
    """Record a W&B run, and why some ranks do not create it: ``wandb.run`` is None there."""
    control = call.frame.control
    lone = persistent_taint(control) if control and is_rank_only(control) else ()
    if state.runs.get(call.location) != lone:
        state.runs[call.location] = lone
        state.summaries.record_write("<run>", "")
    return UNKNOWN


def created_run(state: InterpreterState) -> Taint:
    """Return why ``wandb.run`` is None on some ranks; empty if one run is created by all."""
    state.summaries.record_read("<run>", "")
    causes = list(state.runs.values())
    return merge_taint(*causes) if all(causes) else ()
