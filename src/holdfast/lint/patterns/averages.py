"""Find means of per-rank means, where each rank divided by its own count."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.call_graph import resolve_callee, scope_of_function
from holdfast.lint.patterns.scopes import CodeScope, Words, iter_scopes
from holdfast.lint.sources.modules import Module, SymbolTable, dotted_name

#: Names of masks and other selections.
_MASK_NAME = re.compile(r"mask|valid|keep|kept|pad|ignore|token", re.IGNORECASE)
_COUNTING_METHODS = frozenset({"sum", "count_nonzero", "nonzero"})
#: Names of the number of ranks.
WORLD_SIZE_NAME = re.compile(
    r"world_?size|n(?:um)?_?(?:ranks|gpus|replicas)|num_processes", re.IGNORECASE
)
#: What each rank counts in its own data, and what may combine the counts of all ranks.
_COUNTED = re.compile(r"^1$|\blen\(|\.size\(|\.shape\b|numel\(|batch_size|^bsz?$|^n$")
_COMBINES = re.compile(r"reduce|gather|sync|broadcast|sum_over|mean_over", re.IGNORECASE)
_AVERAGES = re.compile(r"AVG|MAX|MIN|PROD|group=")
_Statement = ast.Assign | ast.AugAssign
#: Maximum number of callers of a function to check.
_MAX_CALLERS = 100


def find_means_of_means(modules: Iterable[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield each all_reduce of a local mean whose result is divided by the number of ranks.

    The mean may be the result of another function or method; the all_reduce may be in a function
    that the mean is passed to.
    """
    modules = list(modules)
    averaging = {}
    for scope in _scopes_with(modules, names, "all_reduce("):
        yield from _reduced_means(scope)
        yield from _sums_over_local_counts(scope)
        if (at := _averaged_parameter(scope)) is not None:
            averaging[scope.name] = at
    for name, at in averaging.items():
        for scope in islice(_scopes_with(modules, names, f"{name}("), _MAX_CALLERS):
            yield from _means_passed_to(scope, name, at)


def _scopes_with(modules: Iterable[Module], names: SymbolTable, word: str) -> Iterator[CodeScope]:
    for module in modules:
        if word in module.text:
            yield from iter_scopes(module, names, Words((word,)))


def _reduced_means(scope: CodeScope) -> Iterator[Divergence]:
    if isinstance(scope.node, ast.Module) or not any(map(_is_all_reduce, scope.nodes)):
        return
    counts, means = _counts_and_means(scope)
    calls = [call for call in scope.calls if _is_all_reduce(call)]
    reduced = {name for reduce_call in calls for name in _names(reduce_call.args[0])}
    for call in calls if means and not reduced & counts else ():
        for name in sorted(_names(call.args[0]) & means.keys()):
            if _averages_result(scope, call, name):
                yield Divergence("mean", scope.location(call), means[name], name, ())


def _sums_over_local_counts(scope: CodeScope) -> Iterator[Divergence]:
    """Yield a sum over the ranks that is divided by a count of this rank alone."""
    summed = {
        dotted_name(call.args[0]): call
        for call in scope.calls
        if _is_all_reduce(call) and not _AVERAGES.search(ast.unparse(call))
    }
    if isinstance(scope.node, ast.Module) or not summed.keys() - {""}:
        return
    nodes = scope.nodes if scope.owner is None else [*scope.nodes, *ast.walk(scope.owner)]
    counts = {
        dotted_name(node.target)
        for node in nodes
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and _COUNTED.search(ast.unparse(node.value))
        and not WORLD_SIZE_NAME.search(ast.unparse(node.value))
    } - {""}
    for node in nodes:  # what is summed, gathered or scaled, too
        if isinstance(node, ast.Call) and _COMBINES.search(dotted_name(node.func)):
            counts -= {name for arg in node.args for name in _names(arg)}
        elif isinstance(node, (ast.Assign, ast.Return)) and WORLD_SIZE_NAME.search(
            ast.unparse(node)
        ):
            counts -= _names(node)
        elif isinstance(node, ast.Assign) and _COMBINES.search(ast.unparse(node.value)):
            counts -= {dotted_name(target) for target in node.targets}
    for node in nodes if counts else ():
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        name = next(iter(_names(node.left) & summed.keys()), "")
        by = _names(node.right) & counts
        own = name.startswith("self.") and all(count.startswith("self.") for count in by)
        if name and by and (own or node.lineno > summed[name].lineno):
            at = scope.location(node)
            message = (
                f"`{name}` is the sum over all ranks, and `{min(by)}` counts on this rank only: "
                "the quotient grows with the number of ranks; sum the count, too"
            )
            yield Divergence("habit-result", at, at, "", (), detail=message, by_name=True)
            return


def _means_passed_to(scope: CodeScope, name: str, at: int) -> Iterator[Divergence]:
    """Yield local means passed to a function that averages them over ranks."""
    _, means = _counts_and_means(scope)
    for call in scope.calls:
        if not dotted_name(call.func).endswith(name):
            continue
        function = resolve_callee(scope, call)
        inner = scope_of_function(function, scope) if function is not None else None
        is_method = function is not None and function.owner is not None
        if (
            inner is None
            or _averaged_parameter(inner) != at
            or not 0 <= at - is_method < len(call.args)
        ):
            continue
        passed = call.args[at - is_method]
        mean = means.get(dotted_name(passed)) or _returned_mean(scope, passed)
        if mean is not None:
            yield Divergence("mean", scope.location(call), mean, ast.unparse(passed), ())


def _averaged_parameter(scope: CodeScope) -> int | None:
    """Return the index of the parameter that a function averages over ranks with equal weights."""
    for call in scope.calls:
        if _is_all_reduce(call):
            name = dotted_name(call.args[0])
            if name in scope.parameters and _averages_result(scope, call, name):
                return scope.parameters.index(name)
    return None


def _averages_result(scope: CodeScope, call: ast.Call, name: str) -> bool:
    """Return True if the all_reduce averages or its sum is divided by the number of ranks."""
    return "AVG" in ast.unparse(call) or any(
        _divides_by_world_size(node, name, call.lineno) for node in scope.nodes
    )


def _counts_and_means(scope: CodeScope) -> tuple[set[str], dict[str, SourceLine]]:
    """Return names of local counts, and names of values divided by one, with their locations."""
    statements = [node for node in scope.nodes if isinstance(node, _Statement)]
    counts = {
        name for stmt in statements if _is_count(stmt.value) for name in _target_names(stmt)
    } | _class_counts(scope)
    counts |= {name for stmt in statements for name in _returned_counts(scope, stmt)}
    means = {
        name: scope.location(stmt)
        for stmt in statements
        if _divides_by_count(stmt, counts)
        for name in _target_names(stmt)
    }
    for statement in statements:
        mean = _returned_mean(scope, statement.value)
        means |= {
            name: mean
            for name in _target_names(statement)
            if mean is not None and isinstance(statement, ast.Assign)
        }
    means |= {
        name: means[of]
        for stmt in statements
        for of in _converted_means(stmt, means)
        for name in _target_names(stmt)
    }
    return counts, means


def _returned_counts(scope: CodeScope, node: _Statement) -> Iterator[str]:
    """Yield variables with the counts among the values that a called function returns."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return
    function = resolve_callee(scope, node.value) if isinstance(node.value, ast.Call) else None
    inner = scope_of_function(function, scope) if function is not None else None
    for returned in inner.nodes if inner is not None else ():
        if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple):
            pairs = zip(node.targets[0].elts, returned.value.elts, strict=False)
            yield from (dotted_name(target) for target, value in pairs if _is_count(value))


def _class_counts(scope: CodeScope) -> frozenset[str]:
    """Return attributes that a class's methods count in and never sum over ranks."""
    return frozenset() if scope.owner is None else _counts_of_class(scope.owner)


@lru_cache(maxsize=256)
def _counts_of_class(owner: ast.ClassDef) -> frozenset[str]:
    nodes = list(ast.walk(owner))
    counts = {
        name
        for node in nodes
        if isinstance(node, _Statement) and _is_count(node.value)
        for name in _target_names(node)
    }
    summed = {
        name
        for node in nodes
        if isinstance(node, ast.Call) and _is_all_reduce(node)
        for name in _names(node.args[0])
    }
    return frozenset(name for name in counts - summed if "." in name)


def _returned_mean(scope: CodeScope, value: ast.expr) -> SourceLine | None:
    """Return where a called function divides its result by its own count."""
    function = resolve_callee(scope, value) if isinstance(value, ast.Call) else None
    inner = scope_of_function(function, scope) if function is not None else None
    if inner is None or any(map(_is_all_reduce, inner.nodes)):
        return None
    counts = set(_class_counts(inner))
    means: dict[str, SourceLine] = {}
    for node in inner.nodes:
        if isinstance(node, _Statement):
            counts |= {name for name in _target_names(node) if _is_count(node.value)}
            means |= {
                name: inner.location(node)
                for name in _target_names(node)
                if _divides_by_count(node, counts)
            }
    for inner_node in inner.nodes:
        if isinstance(inner_node, ast.Return) and inner_node.value is not None:
            if _is_quotient(inner_node.value, counts):
                return inner.location(inner_node)
            if dotted_name(inner_node.value) in means:
                return means[dotted_name(inner_node.value)]
    return None


def _target_names(node: _Statement) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [dotted_name(target) for target in targets if dotted_name(target)]


def _names(node: ast.AST) -> set[str]:
    return {
        dotted_name(child)
        for child in ast.walk(node)
        if isinstance(child, (ast.Name, ast.Attribute))
    } - {""}


def _is_count(value: ast.expr) -> bool:
    """Return True for a count of selected elements: ``(labels != -100).sum()``, ``mask.sum()``."""
    for call in (node for node in ast.walk(value) if isinstance(node, ast.Call)):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _COUNTING_METHODS:
            continue
        summed = (
            call.args[0]
            if call.args and dotted_name(call.func.value) == "torch"
            else call.func.value
        )
        if isinstance(summed, ast.Compare) or (
            isinstance(summed, ast.Name) and _MASK_NAME.search(summed.id)
        ):
            return True
    return False


def _divides_by_count(node: _Statement, counts: set[str]) -> bool:
    """Return True for a division by one of these counts."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return bool(_names(node.value) & counts)
    return _is_quotient(node.value, counts)


def _is_quotient(value: ast.expr, counts: set[str]) -> bool:
    divisions = [
        node
        for node in ast.walk(value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    ]
    return any(
        (_names(division.right) & counts or _is_count(division.right))
        and not _names(division.left) <= counts
        for division in divisions
    )


def _converted_means(node: _Statement, means: Mapping[str, SourceLine]) -> set[str]:
    """Return means in another form: ``torch.tensor(mean)``, ``total / iterations``."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        scales = isinstance(node.value.op, (ast.Div, ast.Mult))
        return {dotted_name(node.value.left)} & means.keys() if scales else set()
    if (
        not isinstance(node, ast.Assign)
        or not isinstance(node.value, ast.Call)
        or not node.value.args
    ):
        return set()
    converts = dotted_name(node.value.func).rpartition(".")[2] in ("tensor", "as_tensor", "Tensor")
    return _names(node.value.args[0]) & means.keys() if converts else set()


def _is_all_reduce(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and bool(node.args)
        and dotted_name(node.func).rpartition(".")[2] == "all_reduce"
    )


def _divides_by_world_size(node: ast.AST, name: str, after: int) -> bool:
    """Return True for a division of the sum by the number of ranks."""
    if getattr(node, "lineno", 0) < after:
        return False
    if isinstance(node, ast.AugAssign):
        return (
            isinstance(node.op, ast.Div)
            and dotted_name(node.target) == name
            and bool(WORLD_SIZE_NAME.search(ast.unparse(node.value)))
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return name in _names(node.left) and bool(WORLD_SIZE_NAME.search(ast.unparse(node.right)))
    return False
