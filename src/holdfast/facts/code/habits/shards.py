"""Shares of the data by the number within the node, of as many as there are ranks in the job."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.facts.code.habits.callees import callee
from holdfast.facts.code.habits.passages import Passage, Words, passages
from holdfast.facts.code.modules import Function, Module, Names, last_name
from holdfast.facts.code.partings import Parting

_WORDS = Words(("local_rank", "LOCAL_RANK", "local_process_index"))
#: A launcher counts within the node; where a program starts its own processes, one node is all there is.
_LAUNCHED = Words(("LOCAL_RANK", "local_process_index"))
#: Not get_local_rank() of a mesh, which counts in the mesh.
_LOCAL = re.compile(r"(?:^|[._])local_(?:rank|process_index)$|['\"]LOCAL_RANK['\"]", re.IGNORECASE)
_ALL = re.compile(r"(?:^|[._])(?:world_?size|num_processes|world)(?:\(\))?$|['\"]WORLD_SIZE['\"]", re.IGNORECASE)
_WHICH = re.compile(r"(?:^|_)(?:rank|shard|replica|part|index|process_index)(?:_?(?:id|idx|index|num|rank))?$")
_COUNT = re.compile(
    r"^(?:num|n|total|count)_?(?:of_)?(?:replicas|shards|parts|ranks|splits)$|^world_size$|^shard_count$"
)
_SHARING = re.compile(r"sampler|shard|split|partition|loader|dataset", re.IGNORECASE)
_OF_LIBRARIES = {"DistributedSampler": ["dataset", "num_replicas", "rank"], "shard": ["num_shards", "index"]}


def shards(modules: Collection[Module], names: Names) -> Iterator[Parting]:
    """Calls that share something out, and are given the one number and the other."""
    launched = any(_LAUNCHED.stand_in(module.text) for module in modules)
    if not launched or any(".spawn(" in module.text for module in modules):
        return
    for module in modules:
        if "torch" in module.text and _WORDS.stand_in(module.text):
            for passage in passages(module, names, _WORDS):
                yield from _shared_out(passage)


def _shared_out(passage: Passage) -> Iterator[Parting]:
    for node in passage.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = last_name(node.func)
        given = _given(passage, node, name)
        which = [value for key, value in given if _WHICH.search(key) and not _is_of_node(key)]
        sharing = _SHARING.search(name)  # `world_size` may be told to whoever sets the group up
        counts = [value for key, value in given if _COUNT.search(key) and (sharing or key != "world_size")]
        if len(which) == len(counts) == 1 and _says(passage, which[0], _LOCAL) and _says(passage, counts[0], _ALL):
            place = passage.place(node)
            yield Parting("share", place, place, ast.unparse(which[0]), (), how=ast.unparse(counts[0]))


def _given(passage: Passage, call: ast.Call, name: str) -> list[tuple[str, ast.expr]]:
    """What is given for which parameter."""
    function = callee(passage, call)
    found = function or passage.entity(call.func)
    parameters = _OF_LIBRARIES.get(name, [])
    if isinstance(found, Function):
        parameters = found.parameters[isinstance(call.func, ast.Attribute) and found.owner is not None :]
    elif not isinstance(found, str):
        made = passage.names.method(found, "__init__") if not isinstance(found, Module) else None
        parameters = made.parameters[1:] if made is not None else []
    if any(isinstance(each, ast.Starred) for each in call.args):
        parameters = []
    named = [(each.arg, each.value) for each in call.keywords if each.arg is not None]
    return [*zip(parameters, call.args, strict=False), *named]


def _is_of_node(key: str) -> bool:
    return any(each in key for each in ("local", "node", "device", "gpu"))


def _says(passage: Passage, node: ast.expr, what: re.Pattern[str]) -> bool:
    """The expression is that number by its name, or by what is assigned to it once."""
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in passage.nodes
            if isinstance(each, ast.Assign) and any(ast.unparse(target) == node.id for target in each.targets)
        ]
        if len(values) == 1:
            text = ast.unparse(values[0])
            return bool(what.search(text.removeprefix("int(").removesuffix(")") if text.startswith("int(") else text))
        if values or node.id in passage.parameters:
            return False
    text = ast.unparse(node)
    return bool(what.search(text)) and (what is _LOCAL or "local" not in text.lower())
