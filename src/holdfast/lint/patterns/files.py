"""Find checkpoints whose loading may run code, or that overwrite the last good one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.paths import PathAnalysis
from holdfast.lint.patterns.scopes import (
    CodeScope,
    argument,
    is_constant_argument,
    iter_scopes,
    walk_nodes,
)
from holdfast.lint.sources.modules import last_name

_FILE_MOVES = re.compile(r"^(os\.(replace|rename|link|renames)|shutil\.\w+)$")
#: A module with more saves is generated code.
_MAX_SAVES = 100
_MOVE_METHODS = frozenset({"rename", "replace", "move", "mv", "fsync"})


def find_file_patterns(scopes: Sequence[CodeScope]) -> Iterator[Divergence]:
    """Yield the divergences in the scopes of one module."""
    for scope in scopes:
        yield from _unsafe_loads(scope)
    yield from _in_place_saves(scopes)


def _unsafe_loads(scope: CodeScope) -> Iterator[Divergence]:
    """Yield ``torch.load(…, weights_only=False)`` of files that the function did not write."""
    saved_paths = {
        ast.unparse(path)
        for call in scope.library_calls("torch.save")
        if (path := argument(call, 1, "f")) is not None
    }
    for call in scope.library_calls("torch.load"):
        path = argument(call, 0, "f")
        if (
            is_constant_argument(call, "weights_only", answer=False)
            and path is not None
            and ast.unparse(path) not in saved_paths
        ):
            location = scope.location(call)
            yield Divergence("pickle", location, location, ast.unparse(path), ())


def _in_place_saves(scopes: Sequence[CodeScope]) -> Iterator[Divergence]:
    """Yield repeated ``torch.save`` to one path that is also loaded, or of a state dict."""
    saves = [
        (saving_scope, call)
        for saving_scope in scopes
        for call in saving_scope.library_calls("torch.save")
        if not _moves_files(saving_scope)
    ]
    if not saves:
        return
    module_scopes = list(iter_scopes(scopes[0].module, scopes[0].symbols))
    paths = PathAnalysis(module_scopes)
    loaded = {
        text
        for saving_scope in module_scopes
        for call in saving_scope.library_calls("torch.load")
        if (path := argument(call, 0, "f")) is not None
        and (text := paths.stable_text(saving_scope, path)) is not None
    }
    for scope, call in saves[:_MAX_SAVES]:
        path = argument(call, 1, "f")
        text = paths.stable_text(scope, path) if path is not None else None
        if text is None or path is None or _keeps_existing(scope, call):
            continue
        repeated = paths.runs_repeatedly(scope, call)
        method = scope.owner is not None and scope.name != "__init__"
        if (text in loaded and (repeated or method)) or (
            repeated and _saves_state_dict(scope, call, paths)
        ):
            location = scope.location(call)
            yield Divergence("in-place", location, location, ast.unparse(path), ())


def _keeps_existing(scope: CodeScope, call: ast.Call) -> bool:
    """Return True for ``if path.exists(): return`` before a save."""
    return any(
        isinstance(node, ast.If)
        and node.lineno < call.lineno
        and isinstance(node.body[-1], ast.Return)
        and isinstance(node.test, ast.Call)
        and last_name(node.test.func) in ("exists", "isfile", "is_file")
        for node in scope.nodes
    )


def _moves_files(scope: CodeScope) -> bool:
    """Return True if the function moves or copies files, so that the written file is not final."""
    return any(
        _FILE_MOVES.match(scope.library_call_name(call))
        or (isinstance(call.func, ast.Attribute) and call.func.attr in _MOVE_METHODS)
        or (isinstance(call.func, ast.Name) and call.func.id in _MOVE_METHODS)
        for call in scope.calls
    )


def _saves_state_dict(scope: CodeScope, call: ast.Call, paths: PathAnalysis) -> bool:
    """Return True if a state dict is saved, or passed by a caller."""
    saved = argument(call, 0, "obj")
    values = [saved] if saved is not None else []
    if isinstance(saved, ast.Name):
        values += [
            node.value
            for node in scope.nodes
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == saved.id
        ]
        if saved.id in scope.parameters:
            values += [
                passed for _, passed in paths.arguments_for(scope, saved.id) if passed is not None
            ]
    return any(
        isinstance(node, ast.Attribute) and node.attr == "state_dict"
        for value in values
        for node in walk_nodes(value)
    )
