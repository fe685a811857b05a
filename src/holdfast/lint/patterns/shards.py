"""Find data sharded by local rank over the world size."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.call_graph import resolve_callee
from holdfast.lint.patterns.scopes import CodeScope, Words, iter_scopes
from holdfast.lint.sources.modules import Function, Module, SymbolTable, last_name

_WORDS = Words(("local_rank", "LOCAL_RANK", "local_process_index"))
#: Words of programs started by a launcher; one that starts its own processes has a single node.
_LAUNCHER_WORDS = Words(("LOCAL_RANK", "local_process_index"))
#: Not get_local_rank() of a mesh, which is a rank within the mesh.
_LOCAL_RANK_NAME = re.compile(
    r"(?:^|[._])local_(?:rank|process_index)$|['\"]LOCAL_RANK['\"]", re.IGNORECASE
)
_WORLD_SIZE_NAME = re.compile(
    r"(?:^|[._])(?:world_?size|num_processes|world)(?:\(\))?$|['\"]WORLD_SIZE['\"]", re.IGNORECASE
)
_INDEX_PARAMETER = re.compile(
    r"(?:^|_)(?:rank|shard|replica|part|index|process_index)(?:_?(?:id|idx|index|num|rank))?$"
)
_COUNT_PARAMETER = re.compile(
    r"^(?:num|n|total|count)_?(?:of_)?(?:replicas|shards|parts|ranks|splits)$"
    r"|^world_size$|^shard_count$"
)
_SHARDING_NAME = re.compile(r"sampler|shard|split|partition|loader|dataset", re.IGNORECASE)
_LIBRARY_PARAMETERS = {
    "DistributedSampler": ["dataset", "num_replicas", "rank"],
    "shard": ["num_shards", "index"],
}


def find_shard_patterns(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield calls that shard data and receive the local rank and the world size."""
    launched = any(_LAUNCHER_WORDS.occur_in(module.text) for module in modules)
    if not launched or any(".spawn(" in module.text for module in modules):
        return
    for module in modules:
        if "torch" in module.text and _WORDS.occur_in(module.text):
            for scope in iter_scopes(module, names, _WORDS):
                yield from _shards_by_local_rank(scope)


def _shards_by_local_rank(scope: CodeScope) -> Iterator[Divergence]:
    for node in scope.calls:
        name = last_name(node.func)
        arguments = _named_arguments(scope, node, name)
        which = [
            value
            for key, value in arguments
            if _INDEX_PARAMETER.search(key) and not _is_local_parameter(key)
        ]
        sharing = _SHARDING_NAME.search(name)  # `world_size` may be passed to a group setup
        counts = [
            value
            for key, value in arguments
            if _COUNT_PARAMETER.search(key) and (sharing or key != "world_size")
        ]
        if (
            len(which) == len(counts) == 1
            and _names_number(scope, which[0], _LOCAL_RANK_NAME)
            and _names_number(scope, counts[0], _WORLD_SIZE_NAME)
        ):
            location = scope.location(node)
            yield Divergence(
                "share",
                location,
                location,
                ast.unparse(which[0]),
                (),
                detail=ast.unparse(counts[0]),
            )


def _named_arguments(scope: CodeScope, call: ast.Call, name: str) -> list[tuple[str, ast.expr]]:
    """Return the arguments of a call with their parameter names."""
    function = resolve_callee(scope, call)
    definition = function or scope.resolve(call.func)
    parameters = _LIBRARY_PARAMETERS.get(name, [])
    if isinstance(definition, Function):
        parameters = definition.parameters[
            isinstance(call.func, ast.Attribute) and definition.owner is not None :
        ]
    elif not isinstance(definition, str):
        constructor = (
            scope.symbols.find_method(definition, "__init__")
            if not isinstance(definition, Module)
            else None
        )
        parameters = constructor.parameters[1:] if constructor is not None else []
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        parameters = []
    named = [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None]
    return [*zip(parameters, call.args, strict=False), *named]


def _is_local_parameter(key: str) -> bool:
    return any(word in key for word in ("local", "node", "device", "gpu"))


def _names_number(scope: CodeScope, node: ast.expr, pattern: re.Pattern[str]) -> bool:
    """Return True if the expression is that number, by its name or its only assignment."""
    if isinstance(node, ast.Name):
        values = [
            child.value
            for child in scope.nodes
            if isinstance(child, ast.Assign)
            and any(ast.unparse(target) == node.id for target in child.targets)
        ]
        if len(values) == 1:
            text = ast.unparse(values[0])
            return bool(
                pattern.search(
                    text.removeprefix("int(").removesuffix(")") if text.startswith("int(") else text
                )
            )
        if values or node.id in scope.parameters:
            return False
    text = ast.unparse(node)
    return bool(pattern.search(text)) and (
        pattern is _LOCAL_RANK_NAME or "local" not in text.lower()
    )
