"""Calls that no rank waits in but whose order matters: files and environment variables."""

from __future__ import annotations

from holdfast.lint.abstract_domain.effects import Marker
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.alarms import record_alarm
from holdfast.lint.divergence.device_selection import DEVICE_CALLS, record_device
from holdfast.lint.divergence.long_work import record_work


def record_call(state: InterpreterState, call: LibraryCall) -> None:
    """Record the effect of a library call, if any."""
    if call.name == "os.putenv":
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
