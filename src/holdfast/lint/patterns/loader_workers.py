"""Find streams that are divided among the ranks and not among the workers of their loader.

Source: torch.utils.data.IterableDataset (2.13.0): each worker has a copy of the data set, which
has to select its part by ``get_worker_info``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.patterns.scopes import argument
from holdfast.lint.sources.modules import Module, last_name

#: What divides by the rank, and what may divide by the worker or is endless and random.
_BY_RANK = re.compile(r"rank|world_size|process_index")
_BY_WORKER = re.compile(r"worker|split_|rand|shuffle|generator|WebDataset", re.IGNORECASE)
#: Position of the number of workers among the arguments of DataLoader.
_WORKERS_AT = 5


def find_loader_workers(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield each loader with workers of a stream that all of its workers read as a whole."""
    own = [module for module in modules if not module.is_test]
    if not any("IterableDataset" in module.text for module in own):
        return
    streams = {
        node.name
        for module in own
        if "IterableDataset" in module.text
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and _is_divided_by_rank(module, node)
    }
    for module in own:
        if streams and "num_workers" in module.text:
            for unit in iter_units(module, "DataLoader("):
                yield from _loaders(unit, streams)


def _is_divided_by_rank(module: Module, node: ast.ClassDef) -> bool:
    if not any(last_name(base) == "IterableDataset" for base in node.bases):
        return False
    text = "\n".join(module.lines[node.lineno - 1 : node.end_lineno])
    return _BY_RANK.search(text) is not None and _BY_WORKER.search(text) is None


def _loaders(unit: Unit, streams: set[str]) -> Iterator[Divergence]:
    for call in unit.calls:
        data, workers = argument(call, 0, "dataset"), argument(call, _WORKERS_AT, "num_workers")
        if last_name(call.func) != "DataLoader" or data is None or workers is None:
            continue
        if isinstance(workers, ast.Constant) and not workers.value:
            continue
        values = unit.assigned(data.id) if isinstance(data, ast.Name) else [data]
        made = [value for value in values if isinstance(value, ast.Call)]
        if made and all(last_name(value.func) in streams for value in made):
            at = unit.location(call)
            message = (
                f"`{ast.unparse(data)}` is divided among the ranks and not among the workers of "
                "its loader: each worker reads all of the rank's share, so that every sample "
                "comes several times; select the part of `get_worker_info()`, too"
            )
            yield Divergence("habit-sampler", at, at, "", (), detail=message, by_name=True)
