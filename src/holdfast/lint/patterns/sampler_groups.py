"""Find samplers that divide the data among the wrong ranks, and loaders that leave theirs out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.patterns.scopes import argument, calls_named
from holdfast.lint.sources.modules import Module, last_name

_WRAPPERS = frozenset({"DistributedDataParallel", "DDP"})
_REPLICA_GROUP = re.compile(r"data_parallel|\bdp\b|dp_(?:group|mesh)|replica", re.IGNORECASE)

#: Number of positional arguments of DataLoader before ``sampler``.
_BEFORE_SAMPLER = 3


def find_sampler_groups(modules: Iterable[Module]) -> Iterator[Divergence]:
    """Yield each DistributedSampler of all ranks beside DDP over a data-parallel group.

    Source: torch.utils.data.DistributedSampler takes rank and size of the default group.
    """
    modules = [module for module in modules if not module.is_test]
    sampling = [module for module in modules if "DistributedSampler(" in module.text]
    wrapping = [module for module in modules if "process_group" in module.text]
    if not sampling or not wrapping:
        return
    group = next(
        (
            ast.unparse(given)
            for module in wrapping
            for call in calls_named(module, _WRAPPERS)
            if (given := argument(call, len(call.args), "process_group")) is not None
            and _REPLICA_GROUP.search(ast.unparse(given))
        ),
        None,
    )
    for module in sampling if group is not None else ():
        for call in calls_named(module, {"DistributedSampler"}):
            keywords = {keyword.arg for keyword in call.keywords}
            if len(call.args) == 1 and not keywords & {"num_replicas", "rank", None}:
                at = SourceLine(module.file, call.lineno, "DistributedSampler")
                message = (
                    f"DDP averages over `{group}`, and this sampler divides the data over all "
                    "ranks: the ranks of one replica get different samples; pass num_replicas and "
                    "rank of that group"
                )
                yield Divergence("habit-sampler", at, at, "", (), detail=message, by_name=True)


def find_left_out_samplers(modules: Iterable[Module]) -> Iterator[Divergence]:
    """Yield each loader without a sampler of a dataset for which its function makes a sampler.

    The sampler is passed to no call, and stored nowhere: every rank gets all of the data.
    """
    for module in modules:
        if not module.is_test and "DistributedSampler(" in module.text:
            for unit in iter_units(module, "DistributedSampler("):
                yield from _left_out_samplers(unit)


def _left_out_samplers(unit: Unit) -> Iterator[Divergence]:
    for call in unit.calls:
        data = argument(call, 0, "dataset")
        if last_name(call.func) != "DistributedSampler" or data is None:
            continue
        name = _assigned_name(unit, call)
        for loader in unit.calls:
            keywords = {keyword.arg for keyword in loader.keywords}
            loaded = argument(loader, 0, "dataset")
            if (
                name
                and last_name(loader.func) == "DataLoader"
                and not keywords & {"sampler", "batch_sampler", None}
                and len(loader.args) <= _BEFORE_SAMPLER
                and unit.function_of(loader) is unit.function_of(call)
                and loaded is not None
                and ast.unparse(loaded) == ast.unparse(data)
                and not _is_passed_on(unit, name, _assigned_name(unit, loader))
            ):
                at = unit.location(loader)
                message = (
                    f"this loader does not use `{name}`, which was made for `{ast.unparse(data)}` "
                    f"on line {call.lineno}: every rank gets all of the data; pass sampler={name}"
                )
                yield Divergence("habit-sampler", at, at, "", (), detail=message, by_name=True)


def _assigned_name(unit: Unit, call: ast.Call) -> str:
    """Return the variable or attribute to which a call is assigned, perhaps on one condition."""
    value: ast.AST = call
    parent = unit.parents.get(value)
    if isinstance(parent, ast.IfExp):
        value, parent = parent, unit.parents.get(parent)
    if isinstance(parent, ast.Assign) and parent.value is value and len(parent.targets) == 1:
        target = parent.targets[0]
        own = isinstance(target, ast.Attribute) and unit.owner is not None
        return ast.unparse(target) if own or isinstance(target, ast.Name) else ""
    return ""


def _is_passed_on(unit: Unit, name: str, loader: str) -> bool:
    """Return True if a sampler is used otherwise than for its methods, tests or as a result.

    A call that gets the loader, too, only sets the epoch.
    """
    whole = Unit(unit.module, unit.owner, None) if "." in name and unit.owner else unit
    for node in whole.nodes:
        if (
            isinstance(node, ast.Name | ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == name
        ):
            parent = whole.parents[node]
            if isinstance(parent, ast.Tuple | ast.keyword):
                parent = whole.parents[parent]
            if isinstance(parent, ast.Call):
                passed = (*parent.args, *(keyword.value for keyword in parent.keywords))
                if not loader or loader not in map(ast.unparse, passed):
                    return True
            elif not isinstance(parent, ast.Attribute | ast.Return | ast.If | ast.Compare):
                return True
    return False
