"""Find averages over ranks that are divided twice, sums taken twice, and means that are gathered.

Sources: torch.distributed.ReduceOp.AVG divides by the number of ranks; DistributedDataParallel
averages gradients over its group; accelerate.Accelerator.gather_for_metrics drops the samples that
fill the last batch, which it can do with a batch dimension only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.averages import WORLD_SIZE_NAME
from holdfast.lint.patterns.scopes import (
    CodeScope,
    Words,
    argument,
    child_nodes,
    iter_scopes,
    starts_before,
)
from holdfast.lint.sources.modules import FUNCTIONS, Module, SymbolTable, dotted_name, last_name

_WORDS = Words(("all_reduce(", "backward(", "gather_for_metrics("))
_ALL_REDUCE = "torch.distributed.all_reduce"
_WRAPS = re.compile(r"\b(?:DistributedDataParallel|DDP)\(")
#: What gives the gradients of a wrapped model another scale.
_RESCALED = re.compile(
    r"comm_hook|reduction=['\"]sum|reduction=['\"]none|\* ?\w*world", re.IGNORECASE
)
_SUMS = re.compile(r"\bsum\(|gather|all_?reduce")
_DIVISIONS = frozenset({"div", "div_", "true_divide", "true_divide_"})
#: Sums of gradients beside those of DDP.
_SUMS_GRADIENTS = re.compile(r"reduce|no_sync|require_backward_grad_sync")
_EVALUATES = re.compile(r"eval|valid|metric|test", re.IGNORECASE)
_MEANS = frozenset({"mean", "nanmean"})
#: The tests around a node, each with the side that it is on.
_Tests = tuple[tuple[int, str], ...]


def find_repeated_averages(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield results and losses that are averaged twice, and means that are gathered as samples."""
    wrapped = any(_WRAPS.search(module.text) for module in modules if not module.is_test)
    for module in modules:
        if module.is_test or not _WORDS.occur_in(module.text):
            continue
        averages_gradients = wrapped and not _RESCALED.search(module.text)
        for scope in iter_scopes(module, names, _WORDS):
            tests = _tests_around(scope)
            yield from _divided_averages(scope, tests)
            yield from _repeated_sums(scope)
            if averages_gradients:
                yield from _divided_losses(scope, tests)
                yield from _divided_gradients(scope)
            yield from _gathered_means(scope)


def _tests_around(scope: CodeScope) -> Mapping[ast.AST, _Tests]:
    """Return the sides of tests, loops and handlers that each node of a function is on."""
    found: dict[ast.AST, _Tests] = {}

    def visit(node: ast.AST, tests: _Tests) -> None:
        found[node] = tests
        if isinstance(node, (*FUNCTIONS, ast.Lambda)) and node is not scope.node:
            return
        for child in child_nodes(node):
            inner = tests
            if isinstance(node, (ast.If, ast.IfExp, ast.Try, ast.While)):
                side = next(
                    name
                    for name, value in ast.iter_fields(node)
                    if value is child or (isinstance(value, list) and child in value)
                )
                inner = (*tests, (id(node), side)) if side != "test" else tests
            visit(child, inner)

    visit(scope.node, ())
    return found


def _divided_averages(scope: CodeScope, tests: Mapping[ast.AST, _Tests]) -> Iterator[Divergence]:
    """Yield an all_reduce with AVG whose result is divided by the number of ranks."""
    for call in scope.library_calls(_ALL_REDUCE):
        tensor, operation = argument(call, 0, "tensor"), argument(call, 1, "op")
        if tensor is None or operation is None or last_name(operation) != "AVG":
            continue
        name = dotted_name(tensor)
        for node in scope.nodes if name else ():
            if getattr(node, "lineno", 0) <= call.lineno:
                continue
            if name in _assigned_names(node) and not _is_division(scope, node, name):
                break
            if _is_division(scope, node, name) and tests.get(node) == tests.get(call):
                message = (
                    f"ReduceOp.AVG at line {call.lineno} has divided `{name}` by the number of "
                    "ranks already: this divides it once more; remove one of the two"
                )
                yield _found(scope, node, message)
                break


def _is_division(scope: CodeScope, node: ast.AST, name: str) -> bool:
    """Return True for a division of a variable by the number of ranks alone."""
    match node:
        case ast.AugAssign(target=target, op=ast.Div(), value=by):
            return dotted_name(target) == name and _is_world_size(scope, by)
        case ast.BinOp(left=left, op=ast.Div(), right=by):
            return dotted_name(left) == name and _is_world_size(scope, by)
        case ast.Call(func=ast.Attribute(value=left, attr=method), args=[by]):
            divides = method in _DIVISIONS and dotted_name(left) == name
            return divides and _is_world_size(scope, by)
        case ast.Assign(value=value):
            return _is_division(scope, value, name)
        case _:
            return False


def _is_world_size(scope: CodeScope, node: ast.expr) -> bool:
    """Return True for the number of ranks, by what it was assigned or else by its name."""
    if isinstance(node, ast.Call):
        return scope.library_call_name(node) == "torch.distributed.get_world_size" or (
            not node.args and WORLD_SIZE_NAME.fullmatch(last_name(node.func)) is not None
        )
    values = [
        each.value
        for each in scope.nodes
        if isinstance(each, ast.Assign)
        and isinstance(node, ast.Name)
        and any(dotted_name(target) == node.id for target in each.targets)
    ]
    if values:
        return all(isinstance(value, ast.Call) for value in values) and all(
            _is_world_size(scope, value) for value in values
        )
    return WORLD_SIZE_NAME.fullmatch(last_name(node)) is not None


def _repeated_sums(scope: CodeScope) -> Iterator[Divergence]:
    """Yield the second of two sums of one tensor over the same ranks, one after the other."""
    for block in _blocks(scope):
        summed: dict[str, ast.Call] = {}
        for statement in block:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and scope.library_call_name(call) == _ALL_REDUCE:
                tensor, operation = argument(call, 0, "tensor"), argument(call, 1, "op")
                name = dotted_name(tensor) if tensor is not None else ""
                sums = operation is None or last_name(operation) == "SUM"
                first = summed.get(name)
                if first is not None and sums and _same_group(first, call):
                    message = (
                        f"`{name}` is the sum over all ranks since line {first.lineno}: this "
                        "multiplies it by the number of ranks"
                    )
                    yield _found(scope, call, message)
                if name and sums:
                    summed[name] = call
                continue
            used = {dotted_name(node) for node in ast.walk(statement) if isinstance(node, ast.expr)}
            for name in set(summed) & used:  # it may be changed or divided
                del summed[name]


def _same_group(first: ast.Call, second: ast.Call) -> bool:
    groups = [argument(call, 2, "group") for call in (first, second)]
    texts = [ast.unparse(group) if group is not None else "" for group in groups]
    return texts[0] == texts[1]


def _blocks(scope: CodeScope) -> Iterator[list[ast.stmt]]:
    for node in (scope.node, *scope.nodes):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            inner = isinstance(node, FUNCTIONS) and node is not scope.node
            if isinstance(block, list) and not inner:
                yield block


def _divided_losses(scope: CodeScope, tests: Mapping[ast.AST, _Tests]) -> Iterator[Divergence]:
    """Yield a mean loss that is divided by the number of ranks, whose gradients DDP averages."""
    for call in scope.calls:
        if last_name(call.func) != "backward":
            continue
        loss = _loss_of(call)
        name = dotted_name(loss) if loss is not None else ""
        division: ast.AST | None = None
        if isinstance(loss, ast.BinOp):
            name = dotted_name(loss.left)
            division = loss if name and _is_division(scope, loss, name) else None
        else:
            changes = [
                node
                for node in scope.nodes
                if name and name in _assigned_names(node) and starts_before(node, call)
            ]
            last = changes[-1] if changes else None
            if last is not None and _is_division(scope, last, name) and len(changes) > 1:
                division = last if tests.get(last) == tests.get(call) else None
        if division is not None and not _is_summed(scope, name):
            message = (
                f"DDP averages the gradients over the ranks, and `{name}` is divided by their "
                "number too: the steps become smaller with every rank; do not divide it"
            )
            yield _found(scope, division, message)


def _divided_gradients(scope: CodeScope) -> Iterator[Divergence]:
    """Yield the division of gradients that DDP has averaged, where the program sums none itself."""
    if _SUMS_GRADIENTS.search(scope.module.text):
        return
    for node in scope.nodes:
        match node:
            case ast.AugAssign(target=ast.Attribute(attr="grad") as target):
                name = dotted_name(target)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="grad") as target)):
                name = dotted_name(target)
            case _:
                continue
        if name and _is_division(scope, node, name):
            message = (
                f"DDP has averaged the gradients over the ranks, and `{name}` is divided by their "
                "number once more: the steps become smaller with every rank; do not divide it"
            )
            yield _found(scope, node, message)


def _loss_of(call: ast.Call) -> ast.expr | None:
    """Return the loss in ``loss.backward()``, ``scaler.scale(loss).backward()``."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(receiver, ast.Call) and last_name(receiver.func) == "scale" and receiver.args:
        return receiver.args[0]
    return receiver


def _is_summed(scope: CodeScope, name: str) -> bool:
    """Return True if a loss is a sum, over samples or over ranks."""
    for node in scope.nodes:
        if (
            isinstance(node, ast.Assign)
            and name in _assigned_names(node)
            and _SUMS.search(ast.unparse(node.value))
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and re.search(r"reduce", last_name(node.func))
            and any(dotted_name(value) == name for value in node.args)
        ):
            return True
    return False


def _gathered_means(scope: CodeScope) -> Iterator[Divergence]:
    """Yield a mean over the rank's own batch that an evaluation passes to gather_for_metrics.

    Loaders of training usually drop the last batch.
    """
    owner = scope.owner.name if scope.owner is not None else ""
    if not _EVALUATES.search(f"{owner}.{scope.name}"):
        return
    for call in scope.calls:
        if last_name(call.func) != "gather_for_metrics" or not call.args:
            continue
        mean = _own_mean(scope, call.args[0], call.lineno)
        if mean is not None:
            message = (
                f"`{ast.unparse(call.args[0])}` is a mean over the rank's own batch: "
                "gather_for_metrics drops the samples that were repeated to fill the last batch, "
                "and cannot do that after they are averaged; gather the samples, then average"
            )
            yield _found(scope, call, message)


def _own_mean(scope: CodeScope, node: ast.expr, before: int) -> ast.expr | None:
    """Return the mean of all elements that an expression or the last value of a variable is."""
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in scope.nodes
            if isinstance(each, ast.Assign)
            and each.lineno < before
            and node.id in _assigned_names(each)
        ]
        return _own_mean(scope, values[-1], values[-1].lineno) if values else None
    match node:
        case ast.Call(func=ast.Attribute(attr="detach" | "float" | "unsqueeze", value=inner)):
            return _own_mean(scope, inner, before)
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in _MEANS:
            return node
        case _:
            return None


def _assigned_names(node: ast.AST) -> set[str]:
    match node:
        case ast.Assign(targets=targets):
            return {dotted_name(target) for target in targets} - {""}
        case ast.AugAssign(target=target):
            return {dotted_name(target)} - {""}
        case _:
            return set()


def _found(scope: CodeScope, node: ast.AST, message: str) -> Divergence:
    at = scope.location(node)
    return Divergence("habit-result", at, at, "", (), detail=message, by_name=True)
