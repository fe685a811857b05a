"""Find collectives inside a block that the main process runs before the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    BARRIERS,
    Effect,
    EffectPath,
    FunctionCall,
    GroupScope,
    LoopEffect,
    Operation,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import last_name

#: Contexts of libraries: the other ranks wait before the block until the first has left it.
#: Sources: accelerate 1.15 state.py, transformers 5.24 training_args.py (main_process_first),
#: lightning 2.6 fabric/fabric.py (rank_zero_first).
_FIRST = frozenset({"main_process_first", "local_main_process_first", "rank_zero_first"})
_KIND = "habit-order"


def record_collective_in_turn(
    state: InterpreterState, frame: Frame, node: ast.With | ast.AsyncWith, block: EffectPath
) -> None:
    """Record a collective that the first rank enters while the others wait before the block.

    A barrier is none: it is matched by that in which the others wait.
    """
    first = next(
        (
            item.context_expr
            for item in node.items
            if isinstance(item.context_expr, ast.Call)
            and last_name(item.context_expr.func) in _FIRST
        ),
        None,
    )
    defined = f"def {last_name(first.func)}(" if first is not None else ""
    if first is None or any(defined in module.text for module in state.modules.values()):
        return
    found = next(_collectives(block), None)
    if found is None:
        return
    op, at = found
    text = state.unparse(first)
    message = (
        f"{op.name} is entered inside `with {text}`: the first rank waits in it for the others, "
        "which wait before the block until the first has left it"
    )
    divergence = Divergence(
        _KIND, at, frame.location(node), f"with {text}", (), op, (op.location,), detail=message
    )
    state.summaries.current.divergences.setdefault((_KIND, at), divergence)


def _collectives(path: Sequence[Effect]) -> Iterator[tuple[Operation, SourceLine]]:
    """Yield the collectives that all ranks enter in a block, with their lines in it."""
    for effect in path:
        match effect:
            case Operation(kind="collective" | "creation", group=GroupScope.WORLD, name=name) if (
                name not in BARRIERS | _FIRST
            ):
                yield effect, effect.location
            case FunctionCall(callee=callee, location=location):
                yield from ((op, location) for op, _ in _collectives(callee.path))
            case LoopEffect(body=body):
                yield from _collectives(body)
            case _:
                pass
