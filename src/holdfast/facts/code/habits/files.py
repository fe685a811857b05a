"""Files of a training program: what may run code while it is loaded, and what is written over the last good one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.facts.code.habits.passages import Passage, argument, inside, passages, says
from holdfast.facts.code.habits.paths import Paths
from holdfast.facts.code.partings import Parting

_MOVES = re.compile(r"^(os\.(replace|rename|link|renames)|shutil\.\w+)$")
#: A module that saves in more places is none that a person wrote.
_MOST = 100
_MOVING = frozenset({"rename", "replace", "move", "mv", "fsync"})


def files(seen: Sequence[Passage]) -> Iterator[Parting]:
    """The partings of the passages of one module."""
    for passage in seen:
        yield from _unsafe(passage)
    yield from _in_place(seen)


def _unsafe(passage: Passage) -> Iterator[Parting]:
    """``torch.load(…, weights_only=False)`` of a file that this function has not just written itself."""
    own = {ast.unparse(path) for call in passage.calls("torch.save") if (path := argument(call, 1, "f")) is not None}
    for call in passage.calls("torch.load"):
        path = argument(call, 0, "f")
        if says(call, "weights_only", answer=False) and path is not None and ast.unparse(path) not in own:
            place = passage.place(call)
            yield Parting("pickle", place, place, ast.unparse(path), ())


def _in_place(seen: Sequence[Passage]) -> Iterator[Parting]:
    """``torch.save`` again and again under one name, from which the program also loads, or of a state dict."""
    saves = [(each, call) for each in seen for call in each.calls("torch.save") if not _moves(each)]
    if not saves:
        return
    whole = list(passages(seen[0].module, seen[0].names))
    paths = Paths(whole)
    loaded = {
        text
        for each in whole
        for call in each.calls("torch.load")
        if (path := argument(call, 0, "f")) is not None and (text := paths.same(each, path)) is not None
    }
    for passage, call in saves[:_MOST]:
        path = argument(call, 1, "f")
        text = paths.same(passage, path) if path is not None else None
        if text is None or path is None:
            continue
        again = paths.again(passage, call)
        method = passage.owner is not None and passage.name != "__init__"
        if (text in loaded and (again or method)) or (again and _state(passage, call, paths)):
            place = passage.place(call)
            yield Parting("in-place", place, place, ast.unparse(path), ())


def _moves(passage: Passage) -> bool:
    """Files are moved or copied in it: what is written is not what is loaded, or is kept."""
    return any(
        isinstance(node, ast.Call)
        and (
            _MOVES.match(passage.called(node))
            or (isinstance(node.func, ast.Attribute) and node.func.attr in _MOVING)
            or (isinstance(node.func, ast.Name) and node.func.id in _MOVING)
        )
        for node in passage.nodes
    )


def _state(passage: Passage, call: ast.Call, paths: Paths) -> bool:
    """What is saved holds a state dict, or a caller gives one."""
    what = argument(call, 0, "obj")
    given = [what] if what is not None else []
    if isinstance(what, ast.Name):
        given += [
            node.value
            for node in passage.nodes
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == what.id
        ]
        if what.id in passage.parameters:
            given += [each for _, each in paths.given(passage, what.id) if each is not None]
    return any(
        isinstance(node, ast.Attribute) and node.attr == "state_dict" for value in given for node in inside(value)
    )
