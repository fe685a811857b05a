"""Find files that all ranks write at one path, so that they truncate each other's output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    FunctionCall,
    LoopEffect,
    Marker,
    Try,
    summarize_path,
)
from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.abstract_objects import RANK_TEXT
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import dotted_name

#: Words in a path, and in a test or decorator, that may make it rank-specific.
_RANK_SPECIFIC_PATH = re.compile(
    r"rank|host|node|proc|pid|uuid|uid|worker|local|rand|tempfile|mk.?temp|shard|devnull|/dev/|sys\."
    r"|device|gpu",
    re.IGNORECASE,
)
_RANK_SPECIFIC_TEST = re.compile(
    r"rank|main|master|zero|chief|primary|leader|local|node|proc|device|gpu|save|write|log|debug|dist"
    r"|ddp|world|only",
    re.IGNORECASE,
)
_PATH_NAME = re.compile(r"path|file|ckpt|checkpoint|fname", re.IGNORECASE)
#: Maximum number of assignments through which a path is traced back.
_MAX_STEPS = 3
_PATH_CALLS = frozenset({"join", "Path", "joinpath", "str", "with_suffix", "fspath"})


def record_written(
    state: InterpreterState, call: LibraryCall, path: ast.expr, value: Value
) -> None:
    """Record a file that is overwritten at a path that is probably equal on all ranks.

    A path that was passed in whole is unknown.
    """
    frame, text = call.frame, state.unparse(path)
    if (
        frame.control
        or value.content
        or value.length
        or RANK_TEXT in value.objects
        or not _is_path(path, value)
    ):
        return
    origins = [text, str(value.const), *_path_expressions(state, frame, path, 0)]
    function = frame.function
    decorators = function.decorators if function is not None else ()
    is_rank_specific = any(map(_RANK_SPECIFIC_PATH.search, origins)) or any(
        _RANK_SPECIFIC_TEST.search(state.unparse(decorator)) for decorator in decorators
    )
    if not is_rank_specific and (
        len(origins) > 2 or not isinstance(path, ast.Name) or isinstance(value.const, str)
    ):
        frame.add_effect(Marker("written", call.location, text))


def _path_expressions(
    state: InterpreterState, frame: Frame, path: ast.expr, depth: int
) -> Iterator[str]:
    """Yield the expressions that were assigned to the names in a path in the same function."""
    names = {child.id for child in ast.walk(path) if isinstance(child, ast.Name)}
    body = frame.tree
    for node in ast.walk(body) if names and depth < _MAX_STEPS else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id in names for target in node.targets
        ):
            yield state.unparse(node.value)
            yield from _path_expressions(state, frame, node.value, depth + 1)


def _is_path(node: ast.expr, value: Value) -> bool:
    """Return True for a path rather than a buffer or open file, by its value or its name."""
    if isinstance(value.const, str) or isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Add, ast.Div, ast.Mod))
    if isinstance(node, ast.Call):
        return dotted_name(node.func).rpartition(".")[2] in _PATH_CALLS
    return bool(_PATH_NAME.search(dotted_name(node)))


def find_written_by_all(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield files written after the process group was created, outside of rank-specific tests."""
    walker = _WriteWalker()
    walker.walk(path)
    yield from walker.divergences


class _WriteWalker:
    """Walk the path of all ranks and track whether the process group exists."""

    def __init__(self) -> None:
        self.divergences: list[Divergence] = []
        self.group_created = False

    def walk(self, path: Sequence[Effect]) -> None:
        """Walk a path and the relevant calls in it."""
        for effect in path:
            match effect:
                case Marker(name="init"):
                    self.group_created = True
                case Marker(name="written", location=location, detail=text):
                    if self.group_created:
                        self.divergences.append(Divergence("written", location, location, text, ()))
                case FunctionCall(callee=body):
                    if body.tags & {"init", "written"}:
                        self.walk(body.path)
                case Branch():
                    self._walk_branch(effect)
                case LoopEffect(body=first, orelse=second) | Try(body=first, final_body=second):
                    self.walk(first)
                    self.walk(second)
                case _:
                    pass

    def _walk_branch(self, branch: Branch) -> None:
        if not branch.taint and not _RANK_SPECIFIC_TEST.search(branch.text):
            self.walk(branch.yes)
            self.walk(branch.no)
        elif "init" in summarize_path((*branch.yes, *branch.no)).tags:
            self.group_created = True
