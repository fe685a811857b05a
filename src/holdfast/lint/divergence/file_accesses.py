"""Record which files and folders a path of the program makes, writes, reads, tests and removes."""

from __future__ import annotations

import ast
import re

from holdfast.lint.abstract_domain.effects import FileAccess, Marker
from holdfast.lint.abstract_domain.values import UNKNOWN, TaintKind, Value, taint_kinds
from holdfast.lint.abstract_state.abstract_objects import RANK_TEXT
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.path_names import path_text
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import Function, dotted_name, last_name

#: Functions by canonical name: the kind of access, and position and name of the path.
_FUNCTIONS = {
    "torch.save": ("writes", 1, "f"), "torch.load": ("reads", 0, "f"),
    "os.makedirs": ("makes", 0, "name"), "os.mkdir": ("makes", 0, "path"),
    "os.listdir": ("lists", 0, "path"), "os.scandir": ("lists", 0, "path"),
    "os.path.exists": ("tests", 0, "path"), "os.path.isfile": ("tests", 0, "path"),
    "os.path.isdir": ("tests", 0, "s"), "shutil.rmtree": ("removes", 0, "path"),
    "os.remove": ("removes", 0, "path"), "os.unlink": ("removes", 0, "path"),
    "os.rmdir": ("removes", 0, "path"), "os.removedirs": ("removes", 0, "name"),
    "shutil.copy": ("writes", 1, "dst"),
    "shutil.copyfile": ("writes", 1, "dst"), "shutil.copytree": ("writes", 1, "dst"),
    "numpy.save": ("writes", 0, "file"), "numpy.savez": ("writes", 0, "file"),
    "numpy.load": ("reads", 0, "file"), "numpy.memmap": ("reads", 0, "filename"),
    "safetensors.torch.save_file": ("writes", 1, "filename"),
    "safetensors.torch.load_file": ("reads", 0, "filename"),
    "joblib.dump": ("writes", 1, "filename"), "joblib.load": ("reads", 0, "filename"),
    "datasets.load_from_disk": ("reads", 0, "dataset_path"),
    "pandas.read_csv": ("reads", 0, "filepath_or_buffer"),
    "pandas.read_parquet": ("reads", 0, "path"), "pandas.read_json": ("reads", 0, "path_or_buf"),
    "h5py.File": ("reads", 0, "name"),
}  # fmt: skip
#: A function of the program or a library that writes to its second argument, by its name.
_DOWNLOADS = re.compile(r"^(?:maybe_)?(?:download\w*|urlretrieve|get_file|fetch_file)$")
#: Methods whose receiver is the path.
_OF_PATH = {
    "write_text": "writes", "write_bytes": "writes", "read_text": "reads", "read_bytes": "reads",
    "mkdir": "makes", "unlink": "removes", "rmdir": "removes", "exists": "tests",
    "is_file": "tests", "is_dir": "tests", "iterdir": "lists", "glob": "lists", "rglob": "lists",
}  # fmt: skip
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
_FOLDER_NAME = re.compile(r"(?:dir|path|folder|file)(?:name)?$", re.IGNORECASE)
_TOLERANCE = frozenset({"exist_ok", "missing_ok", "ignore_errors", "onerror", "dirs_exist_ok"})
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
    text = path_text(state, call.frame, node) if node is not None else None
    if text is None:
        return
    given = call.arguments.named.keys()
    call.frame.add_effect(
        FileAccess(
            kind,
            call.location,
            f"{text}/*" if call.name in _TO_FOLDER else text,
            call.frame.control,
            own=bool(taint_kinds(value.content) & _OWN_KINDS)
            or bool(value.length)
            or RANK_TEXT in value.objects,
            clocked=TaintKind.TIME in taint_kinds(value.content),
            tolerant=bool(given & _TOLERANCE)
            or bool(call.frame.try_depth)
            or call.frame.in_tried_loop
            or kind == "extends"
            or call.name in _TO_FOLDER,  # ranks may write their shards there
        )
    )


def record_named_access(
    state: InterpreterState, frame: Frame, node: ast.expr, arguments: Arguments
) -> None:
    """Record the access of an unknown function, by its name."""
    name = dotted_name(node.func) if isinstance(node, ast.Call) else ""
    if _DOWNLOADS.match(name.rpartition(".")[2]):
        record_access(state, LibraryCall(frame, node, name, arguments))


def runs_on_one_rank(function: Function) -> bool:
    """Return True for a function whose decorator may let one rank run it."""
    return any(ONE_RANK_WORDS.search(ast.unparse(decorator)) for decorator in function.decorators)


def _access(call: LibraryCall) -> tuple[str, ast.expr | None, Value] | None:
    """Return the kind of access, the path's expression and its value."""
    name, arguments = call.name, call.arguments
    if name in ("open", "io.open"):
        return _open_kind(call), arguments.node(0, "file"), call.first("file")
    if name in _FUNCTIONS:
        kind, at, keyword = _FUNCTIONS[name]
        return kind, arguments.node(at, keyword), arguments.get(at, keyword) or UNKNOWN
    if _DOWNLOADS.match(name.rpartition(".")[2]):
        return "extends", arguments.node(1, "path"), arguments.get(1, "path") or UNKNOWN
    if name == "glob.glob":
        return "lists", _folder(arguments.node(0, "pathname")), call.first()
    return _method_access(call) if call.receiver_node is not None else None


def _method_access(call: LibraryCall) -> tuple[str, ast.expr | None, Value] | None:
    name, node = call.name, call.arguments.node(0, "path")
    if name in _OF_PATH:
        return _OF_PATH[name], call.receiver_node, call.receiver
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
