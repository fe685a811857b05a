"""Files and folders of which each rank has its own: ranks need not read equally many entries."""

from __future__ import annotations

import re

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    UNKNOWN,
    Taint,
    TaintKind,
    Value,
    merge_taint,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import RANK_TEXT
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState

#: Functions that read the rows of a file. Not those for checkpoints: their shards are alike.
_READERS = frozenset({
    "read_csv", "read_parquet", "read_json", "read_table", "loadtxt", "genfromtxt", "read_lines",
    "load_dataset", "load_from_disk",
})  # fmt: skip
#: Methods that list a folder, in the order of the file system.
_LISTS = frozenset({"iterdir", "glob", "rglob"})
_WRITES = re.compile(r"[wax]")


def own_length(state: InterpreterState, call: LibraryCall, path: Value) -> Taint:
    """Return why the number of entries differs between ranks: the path contains the rank."""
    if RANK_TEXT not in path.objects and not taint_kinds(path.content) & RANK_KINDS:
        return ()
    return state.taint_source(call.frame, TaintKind.DATA, call.node)


def open_file(state: InterpreterState, call: LibraryCall) -> Value:
    """Return a file that is read, or is unknown if it is written."""
    mode = call.arguments.get(1, "mode")
    if mode is not None and not (isinstance(mode.const, str) and not _WRITES.search(mode.const)):
        return UNKNOWN
    length = own_length(state, call, call.first("file"))
    return Value(length=length, known=False) if length else UNKNOWN


def read_path(state: InterpreterState, call: LibraryCall) -> Value:
    """Return the content of a path, or the paths in it."""
    length = own_length(state, call, call.receiver)
    value = Value(content=call.receiver.content, length=length, known=False)
    if call.name not in _LISTS:
        return value
    return replace(value, order=state.taint_source(call.frame, TaintKind.ORDER, call.node))


def with_own_rows(state: InterpreterState, call: LibraryCall, value: Value) -> Value:
    """Return what a function has read, of as many rows as this rank's own file has."""
    if call.name.rpartition(".")[2] not in _READERS:
        return value
    length = own_length(state, call, call.first("path"))
    return replace(value, length=merge_taint(value.length, length))
