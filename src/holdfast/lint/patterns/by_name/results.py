"""Find results of a rank's own share that are used as those of all ranks, or gathered unpadded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.devices import habit
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.patterns.scopes import LOOPS, argument
from holdfast.lint.sources.modules import FUNCTIONS, Module, last_name

_EVALUATES = re.compile(
    r"^_?(?:validat\w*|evaluat\w*|eval|test|val|run_(?:val|eval)\w*|(?:val|valid|eval|test)_(?:one_)?"
    r"(?:epoch|step|loop|model|loss))$"
)
_EVALUATION = re.compile(r"\b_?(?:validat\w*|evaluat\w*|eval\w*|test\w*|val\w*|run_\w+)\(")
_AGREES = re.compile(
    r"reduce|gather|synchron|broadcast|\ball_|\.compute\(|sync_|average_across|mean_over|dist_avg"
)
_SHARDS_LOADERS = re.compile(
    r"DistributedSampler|setup_dataloaders|accelerator\.prepare|DistSampler|num_replicas"
)
_GATHERS = re.compile(r"\ball_gather(?:_into_tensor)?\(")
_PADS = re.compile(
    r"pad|max_len|max_size|sizes|lengths|\bsize_list|local_size|gather_object|ragged"
)
_JOINS = frozenset({"cat", "stack", "tensor", "concat", "concatenate"})


def find_results(module: Module, units: dict[ast.stmt, Unit]) -> Iterator[Divergence]:
    """Yield the results of a module."""
    if _SHARDS_LOADERS.search(module.text):
        local = {
            statement.name
            for statement in module.tree.body
            if isinstance(statement, FUNCTIONS) and _is_local(module, statement)
        }
        for unit in iter_units(module, _EVALUATION, units) if local else ():
            yield from _unreduced(unit, local)
    for unit in iter_units(module, _GATHERS, units) if "all_gather" in module.text else ():
        yield from _unpadded(unit)


def _is_local(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True for a function that evaluates a loader and averages over no ranks."""
    text = "\n".join(module.lines[function.lineno - 1 : function.end_lineno])
    return (
        _EVALUATES.match(function.name) is not None
        and not _AGREES.search(text)
        and any(isinstance(node, LOOPS) for node in ast.walk(function))
        and any(isinstance(node, ast.Return) and node.value for node in ast.walk(function))
    )


def _unreduced(unit: Unit, local: set[str]) -> Iterator[Divergence]:
    for call in unit.calls:
        parent = unit.parents.get(call)
        if not isinstance(call.func, ast.Name) or call.func.id not in local:
            continue
        if not isinstance(parent, ast.Assign):
            continue
        names = {node.id for node in ast.walk(parent.targets[0]) if isinstance(node, ast.Name)}
        reduced = any(
            _AGREES.search(f"{last_name(other.func)}(")
            and names & {node.id for node in ast.walk(other) if isinstance(node, ast.Name)}
            for other in unit.calls
        )
        if not reduced:
            message = (
                f"{call.func.id} evaluates the rank's own share of the data, and nothing averages "
                f"`{ast.unparse(parent.targets[0])}` over ranks: what one rank prints or compares "
                "is not the result of all"
            )
            yield habit(unit, call, "result", message)


def _unpadded(unit: Unit) -> Iterator[Divergence]:
    if _PADS.search(unit.text(unit.node)):
        return
    for call in unit.calls:
        if last_name(call.func) not in ("all_gather", "all_gather_into_tensor"):
            continue
        gathered = argument(call, 1, "tensor")
        values = unit.assigned(gathered.id) if isinstance(gathered, ast.Name) else []
        if any(map(_fills, values)):
            continue
        for value in values:
            joined = value.args[0] if isinstance(value, ast.Call) and value.args else None
            if (
                isinstance(value, ast.Call)
                and last_name(value.func) in _JOINS
                and isinstance(joined, ast.Name)
                and _grows(unit, joined.id)
            ):
                message = (
                    f"`{ast.unparse(value)}` has one element for each that this rank has seen, and "
                    "gathering different lengths hangs or fails: pad to the longest"
                )
                yield habit(unit, call, "argument", message)
                break


def _fills(value: ast.expr) -> bool:
    """Return True for ``torch.cat([counts, torch.full((width - len(counts),), -1)])``."""
    return (
        isinstance(value, ast.Call)
        and last_name(value.func) in ("cat", "concatenate", "hstack", "concat")
        and any(
            isinstance(node, ast.Call)
            and last_name(node.func) in ("full", "zeros", "ones", "empty", "new_zeros", "new_full")
            and any(
                isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)
                for part in ast.walk(node)
            )
            for node in ast.walk(value)
        )
    )


def _grows(unit: Unit, name: str) -> bool:
    """Return True for a list to which a loop adds."""
    return any(isinstance(value, ast.List) for value in unit.assigned(name)) and any(
        last_name(call.func) in ("append", "extend")
        and isinstance(call.func, ast.Attribute)
        and last_name(call.func.value) == name
        and any(isinstance(parent, LOOPS) for parent, _ in unit.ancestors(call))
        for call in unit.calls
    )
