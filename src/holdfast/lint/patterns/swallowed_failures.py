"""Find handlers that go on after one rank's failure, while the others wait for its collective.

The failure is one of a backward, or of work on the rank's own share of the data before a gather.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.patterns.rank_guards import RankGuards, Unit, iter_units, means_function
from holdfast.lint.patterns.scopes import LOOPS, Words, walk_nodes
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

#: What a function iterates over that is the rank's own share, and what collects the results.
_OWN_SHARE = re.compile(r"rank|shard|loader|sampler|split_between_processes|\bshare")
_COLLECTS = re.compile(
    r"^(?:all_gather\w*|gather_object|gather_for_metrics|all_reduce|wait_for_everyone|barrier)$"
)
_SHARE_WORDS = Words(("gather", "all_reduce", "barrier", "wait_for_everyone"))
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


def find_swallowed_shares(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield calls of a function that collects the results of all ranks, with such a handler."""
    own = [module for module in modules if not module.is_test]
    collecting = {name: op for module in own for name, op in _collecting_functions(module)}
    if not collecting:
        return
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\(" for name in collecting))
    for module in own:
        if "except" not in module.text:
            continue
        for unit in iter_units(module, pattern):
            for block in unit.nodes:
                if isinstance(block, ast.Try) and not block.finalbody:
                    yield from _skipped_collection(unit, block, collecting)


def _collecting_functions(module: Module) -> Iterator[tuple[str, Operation]]:
    """Yield the functions that loop over the rank's share and then enter a collective."""
    if not _SHARE_WORDS.occur_in(module.text) or not _OWN_SHARE.search(module.text):
        return
    for function in module.functions():
        body = getattr(function.node, "body", None)
        if not isinstance(body, list) or function.name == "main":
            continue
        nodes = walk_nodes(*body)
        loop = next(
            (
                node
                for node in nodes
                if isinstance(node, ast.For) and _OWN_SHARE.search(ast.unparse(node.iter))
            ),
            None,
        )
        for node in nodes if loop is not None else ():
            if (
                isinstance(node, ast.Call)
                and _COLLECTS.match(last_name(node.func))
                and loop is not None
                and node.lineno > (loop.end_lineno or 0)
            ):
                at = SourceLine(module.file, node.lineno, function.name)
                yield function.name, Operation(last_name(node.func), at)
                break


def _skipped_collection(
    unit: Unit, block: ast.Try, collecting: Mapping[str, Operation]
) -> Iterator[Divergence]:
    """Yield a ``try`` in a loop around a call that collects, if a handler goes on."""
    if not any(isinstance(parent, LOOPS) for parent, _ in unit.ancestors(block)):
        return
    calls = (node for part in block.body for node in ast.walk(part) if isinstance(node, ast.Call))
    call = next((each for each in calls if last_name(each.func) in collecting), None)
    for handler in block.handlers if call is not None else ():
        caught = ast.unparse(handler.type) if handler.type is not None else "Exception"
        if call is not None and _CAUGHT.match(caught) and not _raises_always(handler.body):
            location, operation = unit.location(call), collecting[last_name(call.func)]
            yield Divergence(
                "swallowed",
                location,
                unit.location(handler),
                f"except {caught}",
                (),
                operation,
                (location, operation.location),
                by_name=True,
            )
            return


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
