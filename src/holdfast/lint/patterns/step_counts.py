"""Find schedules whose number of steps is that of one process, though ranks share the data."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.averages import WORLD_SIZE_NAME
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.patterns.scopes import argument, walk
from holdfast.lint.sources.modules import Module, last_name

#: Schedules by steps: position and name of their number.
_SCHEDULES = {
    "CosineAnnealingLR": (1, "T_max"), "OneCycleLR": (2, "total_steps"),
    "LinearLR": (3, "total_iters"), "PolynomialLR": (1, "total_iters"),
    "get_scheduler": (3, "num_training_steps"),
}  # fmt: skip
_WARMUP = re.compile(r"^get_\w*schedule\w*$")
_TRAINING_STEPS = (2, "num_training_steps")
#: What may count the ranks under another name.
_COUNTS_RANKS = re.compile(
    r"world|total_batch|global_batch|effective|n_?gpus?|num_gpus|device_count|nproc|replicas",
    re.IGNORECASE,
)
_MAX_DEPTH = 4


def find_step_counts(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield each schedule over all samples of data that a DistributedSampler divides."""
    for module in modules:
        if not module.is_test and "DistributedSampler(" in module.text:
            for unit in iter_units(module, "DistributedSampler("):
                yield from _schedules(unit)


def _schedules(unit: Unit) -> Iterator[Divergence]:
    divided = {
        ast.unparse(data)
        for call in unit.calls
        if last_name(call.func) == "DistributedSampler"
        and (data := argument(call, 0, "dataset")) is not None
    }
    for call in unit.calls:
        steps = steps_of_schedule(call)
        if steps is None:
            continue
        origins = list(_origins(unit, steps))
        if any(_counts_ranks(origin) for origin in origins):
            continue
        for origin in origins:
            shared = _divided_length(origin, divided)
            if shared:
                at = unit.location(call)
                message = (
                    f"the schedule counts the batches of all of `{shared}`, of which each rank "
                    "gets its share only: it ends long after the training; divide by the number of "
                    "ranks, or take the length of the loader"
                )
                yield Divergence("habit-sampler", at, at, "", (), detail=message, by_name=True)
                break


def steps_of_schedule(call: ast.Call) -> ast.expr | None:
    """Return the number of steps of a schedule that a call makes; None for another call."""
    name = last_name(call.func)
    place = _SCHEDULES.get(name) or (_TRAINING_STEPS if _WARMUP.match(name) else None)
    return argument(call, *place) if place is not None else None


def _origins(unit: Unit, node: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
    """Yield an expression, and those that its variables were assigned."""
    yield node
    for inner in walk(node) if depth < _MAX_DEPTH else ():
        if isinstance(inner, (ast.Name, ast.Attribute)):
            for value in unit.assigned(ast.unparse(inner)):
                yield from _origins(unit, value, depth + 1)


def _counts_ranks(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return (_COUNTS_RANKS.search(text) or WORLD_SIZE_NAME.search(text)) is not None


def _divided_length(node: ast.expr, divided: Collection[str]) -> str:
    """Return the data in ``len(data) // batch_size``; empty for another expression."""
    for inner in walk(node):
        match inner:
            case ast.BinOp(
                left=ast.Call(func=ast.Name(id="len"), args=[data]), op=ast.FloorDiv() | ast.Div()
            ) if ast.unparse(data) in divided:
                return ast.unparse(data)
            case _:
                pass
    return ""
