"""Record which files and folders a path of the program makes, writes, reads, tests and removes."""

from __future__ import annotations

import ast
import re

from holdfast.lint.abstract_domain.effects import FileAccess, Marker
from holdfast.lint.abstract_domain.values import RANK_KINDS, UNKNOWN, TaintKind, Value, taint_kinds
from holdfast.lint.abstract_state.abstract_objects import (
    RANK_TEXT,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.path_names import path_text
from holdfast.lint.abstract_state.process_stamps import (
    process_sources,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.file_calls import DOWNLOAD_NAME, FILE_CALLS, PATH_METHODS, TOLERANCE
from holdfast.lint.sources.modules import Function, dotted_name, last_name

#: Methods that write to the path in their first argument.
_TO_PATH = frozenset({
    "to_csv", "to_parquet", "to_json", "save_to_disk", "savefig", "save_pretrained",
})  # fmt: skip
#: Those that write several files below it.
_TO_FOLDER = frozenset({"save_to_disk", "save_pretrained", "save_checkpoint"})
#: Functions that start several processes or join them.
_PARALLEL = frozenset({"accelerate.Accelerator", "lightning.Fabric"})
#: Words of a decorator with which one rank runs a function.
ONE_RANK_WORDS = re.compile(
    r"rank|(?<!__)main|master|zero|chief|primary|leader|coordinator|local|node|proc|device|gpu"
    r"|worker|should|dist|ddp|world|only_on",
    re.IGNORECASE,
)
#: What a download does: ranks may share the files in its folder.
_EXTENDING = {"downloads": "extends"}
_FOLDER_NAME = re.compile(r"(?:dir|path|folder|file)(?:name)?$", re.IGNORECASE)
_OWN_KINDS = frozenset({
    TaintKind.RANK, TaintKind.LOCAL_RANK, TaintKind.OWN, TaintKind.HOST, TaintKind.TIME,
    TaintKind.DATA,
})  # fmt: skip


def record_access(state: InterpreterState, call: LibraryCall) -> None:
    """Record the access of a library call to a file or folder, if it is one."""
    if call.name in _PARALLEL:
        call.frame.add_effect(Marker("parallel", call.location))
    found = _access(call)
    function = call.frame.function
    if found is None or (function is not None and runs_on_one_rank(function)):
        return
    kind, node, value = found
    stamped = not value.agreed and bool(process_sources(value))
    own = stamped or bool(taint_kinds(value.content) & _OWN_KINDS) or RANK_TEXT in value.objects
    text = path_text(state, call.frame, node) if node is not None else None
    alone = own or taint_kinds(call.frame.control) & RANK_KINDS
    state.file_changes[bool(alone)].add((call.location.file, call.location.line))
    if text is None:
        return
    given = call.arguments.named.keys()
    call.frame.add_effect(
        FileAccess(
            kind,
            call.location,
            f"{text}/*" if call.name in _TO_FOLDER else text,
            call.frame.control,
            own=own or bool(value.length),
            clocked=stamped,
            tolerant=bool(given & TOLERANCE)
            or bool(call.frame.try_depth)
            or call.frame.in_tried_loop
            or (call.name == "os.makedirs" and call.arguments.node(2, "exist_ok") is not None)
            or kind == "extends"
            or call.name in _TO_FOLDER,  # ranks may write their shards there
        )
    )


def record_named_access(
    state: InterpreterState, frame: Frame, node: ast.expr, arguments: Arguments
) -> None:
    """Record the access of an unknown function, by its name."""
    name = dotted_name(node.func) if isinstance(node, ast.Call) else ""
    if DOWNLOAD_NAME.match(name.rpartition(".")[2]):
        record_access(state, LibraryCall(frame, node, name, arguments))


def runs_on_one_rank(function: Function) -> bool:
    """Return True for a function whose decorator may let one rank run it."""
    return any(ONE_RANK_WORDS.search(ast.unparse(decorator)) for decorator in function.decorators)


def _access(call: LibraryCall) -> tuple[str, ast.expr | None, Value] | None:
    """Return the kind of access, the path's expression and its value."""
    name, arguments = call.name, call.arguments
    if name in ("open", "io.open"):
        return _open_kind(call), arguments.node(0, "file"), call.first("file")
    if name in FILE_CALLS:
        kind, at, keyword, _ = FILE_CALLS[name]
        found = arguments.node(at, keyword), arguments.get(at, keyword) or UNKNOWN
        return None if kind == "moves" else (_EXTENDING.get(kind, kind), *found)
    if DOWNLOAD_NAME.match(name.rpartition(".")[2]):
        return "extends", arguments.node(1, "path"), arguments.get(1, "path") or UNKNOWN
    if name == "glob.glob":
        return "lists", _folder(arguments.node(0, "pathname")), call.first()
    return _method_access(call) if call.receiver_node is not None else None


def _method_access(call: LibraryCall) -> tuple[str, ast.expr | None, Value] | None:
    name, node = call.name, call.arguments.node(0, "path")
    if name in PATH_METHODS:
        return PATH_METHODS[name], call.receiver_node, call.receiver
    if name in _TO_PATH or (name in ("save", "save_checkpoint") and _joins(node)):
        return "writes", node, call.first()
    return None


def _joins(node: ast.expr | None) -> bool:
    """Return True for an expression that can only be a path."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="path"), attr="join")):
            return True
        case ast.JoinedStr(values=values):
            return any("/" in str(getattr(part, "value", "")) for part in values)
        case ast.Name() | ast.Attribute():
            return _FOLDER_NAME.search(last_name(node)) is not None
        case _:
            return False


def _open_kind(call: LibraryCall) -> str:
    mode = call.arguments.get(1, "mode")
    letters = set(mode.const) if mode is not None and isinstance(mode.const, str) else set()
    return "writes" if letters & {"w", "x"} else "extends" if "a" in letters else "reads"


def _folder(pattern: ast.expr | None) -> ast.expr | None:
    """Return the folder of a pattern such as ``os.path.join(folder, "*.pt")``."""
    match pattern:
        case ast.Call(args=[folder, *_]):
            return folder
        case ast.BinOp(left=folder, op=ast.Div() | ast.Add()):
            return folder
        case _:
            return None
