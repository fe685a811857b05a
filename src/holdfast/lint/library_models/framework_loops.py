"""What a framework's training loop does with what a method returns, or with a flag that it sets.

The loop is not part of the program, so these effects are recorded where the method causes them.
"""

from __future__ import annotations

import ast

from holdfast.lint.abstract_domain.effects import Branch, GroupScope, Operation
from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.library_models.classes import library_base
from holdfast.lint.sources.modules import dotted_name

#: Flags that each rank's loop reads for itself (transformers' ``TrainerControl``, Lightning's
#: ``Trainer``) and what ranks without the flag go on to, by the owner's name.
_FLAGS = {
    ("control", "should_training_stop"): "the end of training",
    ("control", "should_epoch_stop"): "the end of the epoch",
    ("control", "should_evaluate"): "evaluation",
    ("control", "should_save"): "the checkpoint",
    ("trainer", "should_stop"): "the end of training",
}


def record_flag(state: InterpreterState, frame: Frame, target: ast.Attribute, value: Value) -> None:
    """Record that a callback makes the training loop stop, evaluate or save."""
    name = _FLAGS.get((dotted_name(target.value).rpartition(".")[2], target.attr))
    if (
        name is None
        or frame.function is None
        or value.const is False
        or _is_agreed_later(frame.scope.module.tree, target.attr)
    ):
        return
    location = frame.location(target)
    reached = Operation(name, location, kind="sharded" if "checkpoint" in name else "collective")
    if value.const is True or not value.content or value.agreed:
        frame.add_effect(reached)
    else:
        text = state.unparse(target)
        frame.add_effect(Branch(location, text, value.content, value.known, (reached,), ()))


def _is_agreed_later(module: ast.Module, flag: str) -> bool:
    """Return True for ``trainer.flag = agree(trainer.flag)`` somewhere in the file."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(name, ast.Attribute) and name.attr == flag for name in node.targets)
        and any(
            isinstance(read, ast.Attribute) and read.attr == flag for read in ast.walk(node.value)
        )
        for node in ast.walk(module)
    )


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
