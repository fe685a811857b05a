"""Find handlers that go on after a failure of one rank's backward, while the others wait for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.patterns.rank_guards import RankGuards, Unit, iter_units, means_function
from holdfast.lint.patterns.scopes import LOOPS
from holdfast.lint.sources.modules import Module, last_name

#: What shows that gradients are averaged over ranks.
_DATA_PARALLEL = (
    "DistributedDataParallel", "DDP(", "FSDP(", "FullyShardedDataParallel", "fully_shard(",
    "accelerator.prepare(", "deepspeed.initialize(", " DDP", " FSDP",
)  # fmt: skip
_WORDS = re.compile(r"\bbackward\(|\bsuper\(\)\.training_step\(")
#: The step of transformers' Trainer, which runs backward on all ranks in each of its loop.
_STEP = "super().training_step"
#: Exceptions that one rank may have in its backward.
_CAUGHT = re.compile(r"^(?:Exception|BaseException|RuntimeError|(?:[\w.]+\.)?OutOfMemoryError)$")

#: Maximum number of functions between a step and the loop that leads to it.
_MAX_CALLERS = 2


def find_swallowed_failures(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield them, in programs that average gradients over ranks."""
    parallel = any(word in module.text for module in modules for word in _DATA_PARALLEL)
    words = ("backward(", _STEP) if parallel else (_STEP,)
    about = [each for each in modules if any(word in each.text for word in words)]
    if about:
        callers = RankGuards(modules)
        for module in about:
            if not module.is_test:
                for unit in iter_units(module, _WORDS):
                    yield from _swallowed_failures(unit, callers)


def _swallowed_failures(unit: Unit, callers: RankGuards) -> Iterator[Divergence]:
    """Yield a backward in a ``try`` whose handler goes on after an error that one rank may have."""
    for block in unit.nodes:
        if not isinstance(block, ast.Try) or block.finalbody:
            continue
        call = next(
            (
                node
                for part in block.body
                for node in ast.walk(part)
                if isinstance(node, ast.Call) and _runs_backward(node)
            ),
            None,
        )
        is_step = call is not None and last_name(call.func) == "training_step"
        repeated = is_step or (call is not None and _is_repeated(unit, block, callers))
        handlers = block.handlers if repeated else ()
        for handler in handlers:
            caught = ast.unparse(handler.type) if handler.type is not None else "Exception"
            if _CAUGHT.match(caught) and not _raises_always(handler.body) and call is not None:
                location = unit.location(call)
                operation = Operation("backward", location, kind="backward")
                yield Divergence(
                    "swallowed",
                    location,
                    unit.location(handler),
                    f"except {caught}",
                    (),
                    operation,
                    (location,),
                    by_name=True,
                )
                break


def _runs_backward(call: ast.Call) -> bool:
    return last_name(call.func) == "backward" or ast.unparse(call.func) == _STEP


def _is_repeated(unit: Unit, node: ast.AST, callers: RankGuards, depth: int = 0) -> bool:
    """Return True for a node in a loop, or in a function that a loop calls: a training step."""
    if any(isinstance(parent, LOOPS) for parent, _ in unit.ancestors(node)):
        return True
    function = unit.function_of(node)
    return (
        function is not None
        and function is unit.node
        and depth < _MAX_CALLERS
        and any(
            isinstance(call, ast.Call)
            and means_function(caller, call, unit)
            and _is_repeated(caller, call, callers, depth + 1)
            for caller, call in callers.callers(unit, function)
        )
    )


def _raises_always(body: Sequence[ast.stmt]) -> bool:
    """Return True if a handler cannot go on: it raises, or ends the process."""
    last = body[-1]
    if isinstance(last, ast.If) and last.orelse:
        return _raises_always(last.body) and _raises_always(last.orelse)
    return isinstance(last, ast.Raise) or "exit(" in ast.unparse(last)
