"""Find steps of the training that only some ranks run, after a backward of all.

Each rank applies the averaged gradients itself, so replicas stay equal only if all ranks clip,
scale and step alike (https://docs.pytorch.org/docs/stable/notes/ddp.html).
"""

from __future__ import annotations

import ast
import re

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import is_rank_only
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import last_name

#: The kind of divergence.
ONE_RANK_UPDATE = "one-rank-update"
_CLIPPING = frozenset({"clip_grad_norm_", "clip_grad_value_"})
_STEPS = re.compile(r"(?:^|_)(?:optim(?:izer)?s?|opt|scheduler|sched|scaler)$")


def record_one_rank_update(state: InterpreterState, call: LibraryCall) -> None:
    """Record a call that changes gradients, weights or learning rate under a test of the rank."""
    control = call.frame.own_control
    if not control or not is_rank_only(control) or not _updates(call):
        return
    if _all_run_backward(call.frame.tree, call.node):
        at = call.location
        text = state.unparse(call.node)
        state.summaries.current.divergences.setdefault(
            (ONE_RANK_UPDATE, at), Divergence(ONE_RANK_UPDATE, at, at, text, control)
        )


def _updates(call: LibraryCall) -> bool:
    name = call.name.rpartition(".")[2]
    if name in _CLIPPING:
        return True
    function = call.node.func
    return (
        name == "step"
        and isinstance(function, ast.Attribute)
        and _STEPS.search(last_name(function.value)) is not None
    )


def _all_run_backward(function: ast.AST, update: ast.Call) -> bool:
    """Return True if the function runs a backward that is not in a branch with the update."""
    branches = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If) and any(child is update for child in ast.walk(node))
    ]
    inside = {id(child) for branch in branches for child in ast.walk(branch)}
    return bool(branches) and any(
        isinstance(node, ast.Call) and last_name(node.func) == "backward" and id(node) not in inside
        for node in ast.walk(function)
    )
