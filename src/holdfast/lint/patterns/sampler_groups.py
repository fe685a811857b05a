"""Find samplers that divide the data over all ranks of a job whose replicas have several ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import argument, calls_named
from holdfast.lint.sources.modules import Module

_WRAPPERS = frozenset({"DistributedDataParallel", "DDP"})
_REPLICA_GROUP = re.compile(r"data_parallel|\bdp\b|dp_(?:group|mesh)|replica", re.IGNORECASE)


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
