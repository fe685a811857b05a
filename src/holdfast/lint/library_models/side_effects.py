"""Calls that no rank waits in but whose order matters: files and environment variables."""

from __future__ import annotations

import ast

from holdfast.lint.abstract_domain.effects import Marker
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.alarms import record_alarm
from holdfast.lint.divergence.device_selection import DEVICE_CALLS, record_device
from holdfast.lint.divergence.long_work import record_work
from holdfast.lint.divergence.shared_files import record_written


def record_call(state: InterpreterState, call: LibraryCall) -> None:
    """Record the effect of a library call, if any."""
    if call.name == "torch.save":
        record_file(state, call, "write", call.arguments.node(1, "f"))
    elif call.name == "torch.load":
        record_file(state, call, "read", call.arguments.node(0, "f"))
    elif call.name == "os.putenv":
        record_variable(call)
    elif call.name in ("signal.signal", "signal.alarm", "signal.setitimer"):
        record_alarm(state, call)
    elif call.name in DEVICE_CALLS:
        record_device(call)
    else:
        record_work(call)


def record_variable(call: LibraryCall) -> None:
    """Record the assignment of an environment variable."""
    key = call.arguments.get(0, "key")
    if key is not None and isinstance(key.const, str):
        call.frame.add_effect(Marker("variable", call.location, key.const, call.frame.control))


def record_file(
    state: InterpreterState, call: LibraryCall, mode: str, path: ast.expr | None
) -> None:
    """Record a file access; the file is identified by the attribute with its path, or the path."""
    if path is None:
        return
    value = state.evaluate(call.frame, path)
    if value.stored_in:
        cls, name = value.stored_in[0]
        about = f"{cls.name}.{name}"
    else:
        about = value.const if isinstance(value.const, str) else state.unparse(path)
    call.frame.add_effect(
        Marker("write" if mode == "extend" else mode, call.location, about, call.frame.control)
    )
    if mode == "write":
        record_written(state, call, path, value)
