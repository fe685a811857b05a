"""Means of ranks' own means, where each rank divided by a number that it counted for itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.facts.code.effects import Place
from holdfast.facts.code.modules import FUNCTIONS, Module, dotted
from holdfast.facts.code.partings import Parting

#: What is counted where not everything counts.
_PICKED = re.compile(r"mask|valid|keep|kept|pad|ignore|token", re.IGNORECASE)
_SUMS = frozenset({"sum", "count_nonzero", "nonzero"})
_WORLD = re.compile(r"world_?size|n(?:um)?_?(?:ranks|gpus|replicas)|num_processes", re.IGNORECASE)
_DIVIDED = re.compile(rf"AVG|/=?[^\n]*(?:{_WORLD.pattern})", re.IGNORECASE)
_Statement = ast.Assign | ast.AugAssign


def means_of_means(modules: Iterable[Module]) -> Iterator[Parting]:
    """Each all_reduce of a local mean whose result is divided by the number of ranks."""
    for module in modules:
        for node in ast.walk(module.tree) if _speaks(module.lines) else ():
            if isinstance(node, FUNCTIONS) and _speaks(module.lines[node.lineno - 1 : node.end_lineno]):
                yield from _of_function(module, node)


def _speaks(lines: Sequence[str]) -> bool:
    """All that has to be said is said; what is not is a matter of a search in the text."""
    text = "\n".join(lines)
    return "all_reduce(" in text and any(word in text for word in _SUMS) and bool(_DIVIDED.search(text))


def _of_function(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Parting]:
    statements = [each for each in ast.walk(function) if isinstance(each, _Statement)]
    counts = {name for each in statements if _counts(each.value) for name in _targets(each)}
    means = {name: each.lineno for each in statements if _over(each, counts) for name in _targets(each)}
    means |= {name: means[of] for each in statements for of in _made_of(each, means) for name in _targets(each)}
    calls = [each for each in ast.walk(function) if isinstance(each, ast.Call) and _reduces(each)]
    reduced = {name for each in calls for name in _names(each.args[0])}
    for call in calls if not reduced & counts else ():
        for name in sorted(_names(call.args[0]) & means.keys()):
            if "AVG" in ast.unparse(call) or any(_by_world(each, name, call.lineno) for each in ast.walk(function)):
                place = Place(module.file, call.lineno, function.name)
                yield Parting("mean", place, Place(module.file, means[name], function.name), name, ())


def _targets(node: _Statement) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [dotted(each) for each in targets if dotted(each)]


def _names(node: ast.AST) -> set[str]:
    return {dotted(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))} - {""}


def _counts(value: ast.expr) -> bool:
    """A number of those that pass a test: ``(labels != -100).sum()``, ``mask.sum()``."""
    for call in (each for each in ast.walk(value) if isinstance(each, ast.Call)):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _SUMS:
            continue
        summed = call.args[0] if call.args and dotted(call.func.value) == "torch" else call.func.value
        if isinstance(summed, ast.Compare) or (isinstance(summed, ast.Name) and _PICKED.search(summed.id)):
            return True
    return False


def _over(node: _Statement, counts: set[str]) -> bool:
    """A quotient by one of these counts."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div) and bool(_names(node.value) & counts)
    divisions = [each for each in ast.walk(node.value) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]
    return any(_names(each.right) & counts and not _names(each.left) <= counts for each in divisions)


def _made_of(node: _Statement, means: Mapping[str, int]) -> set[str]:
    """``torch.tensor(mean)``: the mean itself, in another form."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not node.value.args:
        return set()
    made = dotted(node.value.func).rpartition(".")[2] in ("tensor", "as_tensor", "Tensor")
    return _names(node.value.args[0]) & means.keys() if made else set()


def _reduces(call: ast.Call) -> bool:
    return dotted(call.func).rpartition(".")[2] == "all_reduce" and bool(call.args)


def _by_world(node: ast.AST, name: str, after: int) -> bool:
    """The sum over ranks is divided by their number."""
    if getattr(node, "lineno", 0) < after:
        return False
    if isinstance(node, ast.AugAssign):
        return (
            isinstance(node.op, ast.Div)
            and dotted(node.target) == name
            and bool(_WORLD.search(ast.unparse(node.value)))
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return name in _names(node.left) and bool(_WORLD.search(ast.unparse(node.right)))
    return False
