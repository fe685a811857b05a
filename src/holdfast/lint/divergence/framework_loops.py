"""Find what one rank alone tells the code around it: to stop training, or to run a block."""

from __future__ import annotations

import ast

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import Taint, Value, is_rank_only, merge_taint
from holdfast.lint.abstract_state.abstract_objects import Instance
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState

#: Flags that end the loop of a trainer on this rank. Sources: lightning 2.6
#: loops/fit_loop.py (``done``), transformers 5.24 trainer_callback.py (TrainerControl).
_STOP_FLAGS = frozenset({"should_stop", "should_training_stop", "should_epoch_stop"})
_FRAMEWORKS = ("lightning", "transformers")
_KIND = "habit-branch"


def record_lone_stop(
    state: InterpreterState, frame: Frame, target: ast.Attribute, value: Value
) -> None:
    """Record a flag that stops the loop of a library's trainer on some ranks only."""
    if target.attr not in _STOP_FLAGS or value.const is False or value.agreed:
        return
    control = merge_taint(frame.control, value.content)
    owner = state.evaluate(frame, target.value)
    module = frame.scope.module
    if (
        not control
        or owner.objects_of(Instance)
        or not any(name in module.text for name in _FRAMEWORKS)
        or _is_agreed_later(module.tree, target.attr)
    ):
        return
    message = (
        f"`{state.unparse(target)}` is set only on some ranks ({control[0].text}): they leave the "
        "loop of the trainer, and the others wait in the next backward; agree on it first"
    )
    _record(state, frame, target, control, message)


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


def record_lone_yield(
    state: InterpreterState, frame: Frame, node: ast.Yield | ast.YieldFrom
) -> None:
    """Record the only yield of a context manager, if some ranks do not reach it."""
    control = frame.own_control
    if not control or not is_rank_only(control):
        return
    if not _holds_all_yields(frame.tree, node):
        return
    message = (
        f"only some ranks reach this yield ({control[0].text}): on the others the `with` statement "
        "raises RuntimeError, as the generator did not yield"
    )
    _record(state, frame, node, control, message)


def _holds_all_yields(tree: ast.AST, node: ast.AST) -> bool:
    """Return True if one yield, or one side of an outer test, has all yields of a function."""
    yields = {each for each in ast.walk(tree) if isinstance(each, (ast.Yield, ast.YieldFrom))}
    if yields == {node}:
        return True
    return any(
        isinstance(statement, ast.If)
        and yields <= {each for inner in statement.body for each in ast.walk(inner)}
        for statement in getattr(tree, "body", ())
    )


def _record(
    state: InterpreterState, frame: Frame, node: ast.AST, control: Taint, message: str
) -> None:
    at = frame.location(node)
    divergence = Divergence(_KIND, at, at, "", control, detail=message, by_name=True)
    state.summaries.current.divergences.setdefault((_KIND, at), divergence)
