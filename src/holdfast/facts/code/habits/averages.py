"""Means of ranks' own means, where each rank divided by a number that it counted for itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from holdfast.facts.code.effects import Place
from holdfast.facts.code.habits.callees import callee, passage_of
from holdfast.facts.code.habits.passages import Passage, Words, passages
from holdfast.facts.code.modules import Module, Names, dotted
from holdfast.facts.code.partings import Parting

#: What is counted where not everything counts.
_PICKED = re.compile(r"mask|valid|keep|kept|pad|ignore|token", re.IGNORECASE)
_SUMS = frozenset({"sum", "count_nonzero", "nonzero"})
_WORLD = re.compile(r"world_?size|n(?:um)?_?(?:ranks|gpus|replicas)|num_processes", re.IGNORECASE)
_Statement = ast.Assign | ast.AugAssign
#: So many callers of a function are looked at.
_MOST = 100


def means_of_means(modules: Iterable[Module], names: Names) -> Iterator[Parting]:
    """Each all_reduce of a local mean whose result is divided by the number of ranks, through functions of one or two.

    The mean may be what another function or method gives; the all_reduce may stand in a function that it is handed to.
    """
    modules = list(modules)
    averaging = {}
    for passage in _passages(modules, names, "all_reduce("):
        yield from _of_function(passage)
        if (at := _averages(passage)) is not None:
            averaging[passage.name] = at
    for name, at in averaging.items():
        for passage in islice(_passages(modules, names, f"{name}("), _MOST):
            yield from _handed(passage, name, at)


def _passages(modules: Iterable[Module], names: Names, word: str) -> Iterator[Passage]:
    for module in modules:
        if word in module.text:
            yield from passages(module, names, Words((word,)))


def _of_function(passage: Passage) -> Iterator[Parting]:
    if isinstance(passage.node, ast.Module) or not any(map(_reduces, passage.nodes)):
        return
    counts, means = _counted(passage)
    calls = [each for each in passage.nodes if isinstance(each, ast.Call) and _reduces(each)]
    reduced = {name for each in calls for name in _names(each.args[0])}
    for call in calls if means and not reduced & counts else ():
        for name in sorted(_names(call.args[0]) & means.keys()):
            if _divides(passage, call, name):
                yield Parting("mean", passage.place(call), means[name], name, ())


def _handed(passage: Passage, name: str, at: int) -> Iterator[Parting]:
    """A mean of its own is handed to a function that averages it over ranks."""
    _, means = _counted(passage)
    for call in passage.nodes:
        if not isinstance(call, ast.Call) or not dotted(call.func).endswith(name):
            continue
        function = callee(passage, call)
        inner = passage_of(function, passage) if function is not None else None
        own = function is not None and function.owner is not None
        if inner is None or _averages(inner) != at or not 0 <= at - own < len(call.args):
            continue
        given = call.args[at - own]
        mean = means.get(dotted(given)) or _given_mean(passage, given)
        if mean is not None:
            yield Parting("mean", passage.place(call), mean, ast.unparse(given), ())


def _averages(passage: Passage) -> int | None:
    """The place of the parameter that a function averages over ranks, each as much as the others."""
    for call in passage.nodes:
        if isinstance(call, ast.Call) and _reduces(call):
            name = dotted(call.args[0])
            if name in passage.parameters and _divides(passage, call, name):
                return passage.parameters.index(name)
    return None


def _divides(passage: Passage, call: ast.Call, name: str) -> bool:
    """The all_reduce averages, or its sum is divided by the number of ranks."""
    return "AVG" in ast.unparse(call) or any(_by_world(each, name, call.lineno) for each in passage.nodes)


def _counted(passage: Passage) -> tuple[set[str], dict[str, Place]]:
    """What a function counts for itself, and what it holds that was divided by such a count, and where."""
    statements = [each for each in passage.nodes if isinstance(each, _Statement)]
    counts = {name for each in statements if _counts(each.value) for name in _targets(each)} | _of_class(passage)
    means = {name: passage.place(each) for each in statements if _over(each, counts) for name in _targets(each)}
    for each in statements:
        given = _given_mean(passage, each.value)
        means |= {name: given for name in _targets(each) if given is not None and isinstance(each, ast.Assign)}
    means |= {name: means[of] for each in statements for of in _made_of(each, means) for name in _targets(each)}
    return counts, means


def _of_class(passage: Passage) -> set[str]:
    """Attributes in which the methods of a class count, and that none of them sums over ranks."""
    if passage.owner is None:
        return set()
    nodes = list(ast.walk(passage.owner))
    counts = {name for each in nodes if isinstance(each, _Statement) and _counts(each.value) for name in _targets(each)}
    summed = {name for each in nodes if isinstance(each, ast.Call) and _reduces(each) for name in _names(each.args[0])}
    return {name for name in counts - summed if "." in name}


def _given_mean(passage: Passage, value: ast.expr) -> Place | None:
    """Where a call's function divides what it gives by its own count."""
    function = callee(passage, value) if isinstance(value, ast.Call) else None
    inner = passage_of(function, passage) if function is not None else None
    if inner is None or any(map(_reduces, inner.nodes)):
        return None
    counts = _of_class(inner)
    means: dict[str, Place] = {}
    for each in inner.nodes:
        if isinstance(each, _Statement):
            counts |= {name for name in _targets(each) if _counts(each.value)}
            means |= {name: inner.place(each) for name in _targets(each) if _over(each, counts)}
    for each in inner.nodes:
        if isinstance(each, ast.Return) and each.value is not None:
            if _quotient(each.value, counts):
                return inner.place(each)
            if dotted(each.value) in means:
                return means[dotted(each.value)]
    return None


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
    return _quotient(node.value, counts)


def _quotient(value: ast.expr, counts: set[str]) -> bool:
    divisions = [each for each in ast.walk(value) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]
    return any(
        (_names(each.right) & counts or _counts(each.right)) and not _names(each.left) <= counts for each in divisions
    )


def _made_of(node: _Statement, means: Mapping[str, Place]) -> set[str]:
    """``torch.tensor(mean)``: the mean itself, in another form."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not node.value.args:
        return set()
    made = dotted(node.value.func).rpartition(".")[2] in ("tensor", "as_tensor", "Tensor")
    return _names(node.value.args[0]) & means.keys() if made else set()


def _reduces(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(node.args) and dotted(node.func).rpartition(".")[2] == "all_reduce"


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
