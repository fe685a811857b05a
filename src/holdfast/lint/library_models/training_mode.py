"""``model.train()`` and ``model.eval()``: the mode of a module of the program and its parts."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.lint.abstract_domain.truth import truth_value
from holdfast.lint.abstract_domain.values import Value, constant_value
from holdfast.lint.abstract_state.abstract_objects import Instance, LibraryInstance
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState

#: Maximum number of modules in a model.
_MAX_MODULES = 64


def train_model(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``train(mode=True)``."""
    mode = call.arguments.get(0, "mode")
    return _set_mode(state, call, training=True if mode is None else truth_value(mode))


def evaluate_model(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``eval()``."""
    return _set_mode(state, call, training=False)


def _set_mode(state: InterpreterState, call: LibraryCall, *, training: bool | None) -> Value | None:
    modules = list(_iter_modules(state, call.receiver))
    if not modules:
        return None
    mode = constant_value(training) if training is not None else None
    for module in modules:
        state.set_fact(call.frame, (module, "training"), mode)
    return call.receiver


def _iter_modules(state: InterpreterState, model: Value) -> Iterator[Instance]:
    """Yield the objects of the program that a model consists of."""
    pending = [model]
    seen: set[Instance] = set()
    while pending and len(seen) < _MAX_MODULES:
        for obj in pending.pop().objects:
            if isinstance(obj, LibraryInstance) and obj.wrapped is not None:
                pending.append(obj.wrapped)
            elif isinstance(obj, Instance) and obj not in seen:
                seen.add(obj)
                yield obj
                pending += state.heap.attributes(obj).values()
