"""Find GPUs and main processes selected by the wrong rank, and ranks taken for another."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.patterns.by_name.programs import NamedCollectives
from holdfast.lint.patterns.rank_guards import Unit
from holdfast.lint.sources.modules import FUNCTIONS, dotted_name, last_name

_MAIN_FUNCTION = re.compile(
    r"^_?(?:is|if|am_i|on)_(?:main|master|rank_?(?:0|zero)|root|primary)\w*$"
)
_LOCAL_RANK = re.compile(r"LOCAL_RANK|\blocal_rank\b|get_local_rank\(")
_GLOBAL_RANK_READ = re.compile(
    r"get_rank\(|['\"]RANK['\"]|global_rank|node_rank|NODE_RANK|GROUP_RANK"
)


def habit(unit: Unit, node: ast.AST, about: str, message: str) -> Divergence:
    """Return the divergence of a habit."""
    location = unit.location(node)
    text = message.partition(":")[0]
    source = TaintSource(TaintKind.NAMED, location.file, location.line, text, by_name=True)
    return Divergence(f"habit-{about}", location, location, text, (source,), detail=message)


def swapped_ranks(
    collectives: NamedCollectives, unit: Unit, node: ast.Assign
) -> Iterator[Divergence]:
    """Yield a local rank taken from the global one, or from the wrong element of a result."""
    target, value = node.targets[0], node.value
    if not isinstance(value, ast.Call):
        return
    if last_name(target) == "local_rank":
        if dotted_name(value.func).endswith("distributed.get_rank") and not value.args:
            message = (
                "`local_rank` is set to the global rank: on the second host, there is no device of "
                "this number; use LOCAL_RANK"
            )
            yield habit(unit, node, "local-rank", message)
    elif isinstance(target, ast.Tuple):
        names = [last_name(element) for element in target.elts]
        returned = collectives.returned_names(last_name(value.func))
        if "local_rank" in names and sorted(returned) == sorted(names) and returned != names:
            message = (
                f"{last_name(value.func)} returns {', '.join(returned)}, which are taken for "
                f"{', '.join(names)}"
            )
            yield habit(unit, node, "local-rank", message)


def main_by_local_rank(unit: Unit) -> Iterator[Divergence]:
    """Yield a test of the local rank in a function that names the one main process."""
    function = unit.node
    if not isinstance(function, FUNCTIONS) or not _MAIN_FUNCTION.match(function.name):
        return
    text = unit.text(function)
    if not _LOCAL_RANK.search(text) or _GLOBAL_RANK_READ.search(text):
        return
    for node in unit.nodes:
        if isinstance(node, (ast.If, ast.Return)) and _LOCAL_RANK.search(
            ast.unparse(node.test if isinstance(node, ast.If) else node)
        ):
            message = (
                f"{function.name} depends on the local rank: one rank on every host passes, and "
                "all of them write"
            )
            yield habit(unit, node, "local-rank", message)
            return
