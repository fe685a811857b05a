"""Calls that nobody waits in, and that matter for the order of things: files and variables of the environment."""

from __future__ import annotations

import ast

from holdfast.facts.code.alarms import note_alarm
from holdfast.facts.code.arguments import LibraryCall
from holdfast.facts.code.devices import TAKING, note_device
from holdfast.facts.code.effects import Note
from holdfast.facts.code.labour import note_work
from holdfast.facts.code.shared_files import note_written
from holdfast.facts.code.state import State


def note_call(state: State, call: LibraryCall) -> None:
    """Note it, where it is one of them."""
    if call.name == "torch.save":
        note_file(state, call, "write", call.given.node(1, "f"))
    elif call.name == "torch.load":
        note_file(state, call, "read", call.given.node(0, "f"))
    elif call.name == "os.putenv":
        note_variable(call)
    elif call.name in ("signal.signal", "signal.alarm", "signal.setitimer"):
        note_alarm(state, call)
    elif call.name in TAKING:
        note_device(call)
    else:
        note_work(call)


def note_variable(call: LibraryCall) -> None:
    """A variable of the environment is set."""
    key = call.given.get(0, "key")
    if key is not None and isinstance(key.const, str):
        call.frame.note(Note("variable", call.place, key.const, call.frame.control))


def note_file(state: State, call: LibraryCall, how: str, path: ast.expr | None) -> None:
    """A file is written, extended or read; it is known by the attribute that holds its path, the path, or its text."""
    if path is None:
        return
    value = state.evaluate(call.frame, path)
    if value.homes:
        cls, name = value.homes[0]
        about = f"{cls.name}.{name}"
    else:
        about = value.const if isinstance(value.const, str) else state.text(path)
    call.frame.note(Note("write" if how == "extend" else how, call.place, about, call.frame.control))
    if how == "write":
        note_written(state, call, path, value)
