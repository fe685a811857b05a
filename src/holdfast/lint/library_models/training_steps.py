"""What Lightning's training loop does with what ``training_step`` returns."""

from __future__ import annotations

import ast

from holdfast.lint.abstract_domain.effects import GroupScope, Operation
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.library_models.classes import library_base


def record_loss(state: InterpreterState, frame: Frame, node: ast.Return) -> None:
    """Record the backward that Lightning runs on what ``training_step`` returns, unless None.

    Its documentation of ``training_step`` does not support None with several devices.
    """
    function = frame.function
    if (
        function is None
        or function.name != "training_step"
        or function.owner is None
        or node.value is None
        or (isinstance(node.value, ast.Constant) and node.value.value is None)
        or library_base(state.symbols, function.owner) != "lightning.Module"
        or _optimizes_itself(function.owner.node)
    ):
        return
    location = frame.location(node)
    frame.add_effect(Operation("backward", location, GroupScope.WORLD, "backward"))


def _optimizes_itself(cls: ast.ClassDef) -> bool:
    """Return True if the class switches automatic optimization off."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == "automatic_optimization"
        for node in ast.walk(cls)
    )
