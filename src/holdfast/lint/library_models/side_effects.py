"""Calls that no rank waits in but whose order matters: files and environment variables."""

from __future__ import annotations

from holdfast.lint.abstract_state.abstract_objects import dict_entries
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.alarms import record_alarm
from holdfast.lint.divergence.device_selection import DEVICE_CALLS, record_device
from holdfast.lint.divergence.environment_variables import add_variable
from holdfast.lint.divergence.long_work import record_work


def record_call(state: InterpreterState, call: LibraryCall) -> None:
    """Record the effect of a library call, if any."""
    if call.name == "os.putenv":
        record_variable(call)
    elif call.name == "os.environ.update":
        for name, value in ((dict_entries(call.first()) or {}) | call.arguments.named).items():
            add_variable(call.frame, call.location, name, value)
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
        value = call.arguments.get(1, "value") if call.name == "os.putenv" else None
        add_variable(call.frame, call.location, key.const, value)
