"""Files that all ranks write, to one path: what one writes another cuts short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.facts.code.arguments import LibraryCall
from holdfast.facts.code.effects import Called, Effect, Fork, Loop, Note, Try, body_of
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.modules import dotted
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.state import State
from holdfast.facts.code.things import NAMED
from holdfast.facts.code.values import Value

#: Words by which a path, and by which a test or a decorator, may tell ranks apart where the model knows no better.
_OWN_PATH = re.compile(
    r"rank|host|node|proc|pid|uuid|uid|worker|local|rand|tempfile|mk.?temp|shard|devnull|/dev/|sys\.|device|gpu",
    re.IGNORECASE,
)
_OWN_TEST = re.compile(
    r"rank|main|master|zero|chief|primary|leader|local|node|proc|device|gpu|save|write|log|debug|dist|ddp|world|only",
    re.IGNORECASE,
)
_PATH = re.compile(r"path|file|ckpt|checkpoint|fname", re.IGNORECASE)
#: A path is followed back through so many names.
_MOST_STEPS = 3
_PATH_CALLS = frozenset({"join", "Path", "joinpath", "str", "with_suffix", "fspath"})


def note_written(state: State, call: LibraryCall, path: ast.expr, value: Value) -> None:
    """A file is written anew, at a path that no rank has for itself as far as can be seen.

    A path that was handed in as a whole is not known.
    """
    frame, text = call.frame, state.text(path)
    if frame.control or value.content or value.length or NAMED in value.things or not _is_path(path, value):
        return
    origins = [text, str(value.const), *_origins(state, frame, path, 0)]
    function = frame.function
    decorators = function.decorators if function is not None else ()
    tells = any(map(_OWN_PATH.search, origins)) or any(_OWN_TEST.search(state.text(each)) for each in decorators)
    if not tells and (len(origins) > 2 or not isinstance(path, ast.Name) or isinstance(value.const, str)):
        frame.note(Note("written", call.place, text))


def _origins(state: State, frame: Frame, path: ast.expr, depth: int) -> Iterator[str]:
    """The expressions of which the names in a path were made in the same function."""
    names = {each.id for each in ast.walk(path) if isinstance(each, ast.Name)}
    body = frame.function.node if frame.function is not None else frame.scope.module.tree
    for node in ast.walk(body) if names and depth < _MOST_STEPS else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id in names for each in node.targets
        ):
            yield state.text(node.value)
            yield from _origins(state, frame, node.value, depth + 1)


def _is_path(node: ast.expr, value: Value) -> bool:
    """A path, and no buffer or open file: by what it is, and else by its name."""
    if isinstance(value.const, str) or isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Add, ast.Div, ast.Mod))
    if isinstance(node, ast.Call):
        return dotted(node.func).rpartition(".")[2] in _PATH_CALLS
    return bool(_PATH.search(dotted(node)))


def written_by_all(way: Sequence[Effect]) -> Iterator[Parting]:
    """Of a whole program: files written after its process group was made, under no test that may tell ranks apart."""
    walk = _Walk()
    walk.through(way)
    yield from walk.found


class _Walk:
    """Goes along the way of all ranks, and knows whether there are several of them by now."""

    def __init__(self) -> None:
        self.found: list[Parting] = []
        self.begun = False

    def through(self, way: Sequence[Effect]) -> None:
        """The way, and the calls in it that matter."""
        for effect in way:
            match effect:
                case Note(name="init"):
                    self.begun = True
                case Note(name="written", place=place, about=about):
                    if self.begun:
                        self.found.append(Parting("written", place, place, about, ()))
                case Called(within=body):
                    if body.marks & {"init", "written"}:
                        self.through(body.way)
                case Fork():
                    self._fork(effect)
                case Loop(body=one, after=other) | Try(body=one, last=other):
                    self.through(one)
                    self.through(other)
                case _:
                    pass

    def _fork(self, fork: Fork) -> None:
        if not fork.test and not _OWN_TEST.search(fork.text):
            self.through(fork.yes)
            self.through(fork.no)
        elif "init" in body_of((*fork.yes, *fork.no)).marks:
            self.begun = True
