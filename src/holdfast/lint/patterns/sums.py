"""Find sums of gradients and of means over ranks that nothing divides by the number of ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, Words, argument, iter_scopes
from holdfast.lint.sources.modules import Class, Module, SymbolTable, dotted_name

_WORDS = Words(("all_reduce(",))
#: What may scale by the number of ranks, anywhere in the module.
_SCALES = re.compile(
    r"\b(?-i:AVG)\b|\bPREMUL|\.div_?\(|\.mul_?\(|world|n(?:um)?_?(?:ranks|gpus|replicas|proc|devices)"
    r"|\bsize\(\)|reciprocal|average_grad|true_divide|dp_size",
    re.IGNORECASE,
)

#: A loss that is a mean over the rank's own samples.
_AVERAGES_LOSS = re.compile(r"loss\w* = .*(?:\.mean\(\)|(?:cross_entropy|mse_loss|nll_loss)\()")


def find_lost_shares(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield sums over all ranks in modules that never mention the number of ranks."""
    for module in modules:
        if module.is_test or not _WORDS.occur_in(module.text) or _SCALES.search(module.text):
            continue
        for scope in iter_scopes(module, names, _WORDS):
            for call in scope.library_calls("torch.distributed.all_reduce"):
                message = _message(scope, call)
                if message:
                    at = scope.location(call)
                    yield Divergence(
                        "habit-result", at, at, "all_reduce", (), detail=message, by_name=True
                    )


def _message(scope: CodeScope, call: ast.Call) -> str:
    """Return the message for a sum of gradients or means over all ranks; empty for others."""
    tensor, operation = argument(call, 0, "tensor"), argument(call, 1, "op")
    if tensor is None or argument(call, 2, "group") is not None:
        return ""
    if operation is not None and not ast.unparse(operation).endswith("SUM"):
        return ""
    text = ast.unparse(tensor)
    if isinstance(tensor, ast.Attribute) and text.endswith((".grad", ".grad.data")):
        if not _AVERAGES_LOSS.search(scope.module.text) or ".step(" not in scope.module.text:
            return ""
        return (
            f"`{text}` becomes the sum of the gradients of all ranks, and nothing divides it by "
            "their number: the step grows with the number of ranks"
        )
    if _is_mean(scope, call, text) and not _is_divided(scope, call, text):
        return (
            f"`{text}` is a mean on each rank and becomes their sum, and nothing divides it by "
            "the number of ranks"
        )
    return ""


def _is_mean(scope: CodeScope, call: ast.Call, text: str) -> bool:
    """Return True if the last value before the call is a mean of loss values or of elements."""
    values = [
        node.value
        for node in scope.nodes
        if isinstance(node, ast.Assign)
        and node.lineno < call.lineno
        and any(dotted_name(target) == text for target in node.targets)
    ]
    return bool(values) and _is_quotient(scope, values[-1])


def _is_quotient(scope: CodeScope, value: ast.expr) -> bool:
    """Return True for a mean, as a tensor too: ``x / n``, ``x.mean()``, a property of these."""
    match value:
        case ast.BinOp(op=ast.Div(), right=right):
            return not isinstance(right, ast.Constant)
        case ast.Call(func=ast.Attribute(attr="mean"), args=[], keywords=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="tensor" | "as_tensor"), args=[inner, *_]):
            return _is_quotient(scope, inner)
        case ast.Attribute(attr=name):
            return any(
                isinstance(each, ast.Return)
                and isinstance(each.value, ast.BinOp)
                and isinstance(each.value.op, ast.Div)
                for cls in scope.module.names.values()
                if isinstance(cls, Class)
                for method in cls.node.body
                if isinstance(method, ast.FunctionDef) and method.name == name
                for each in method.body
            )
        case _:
            return False


def _is_divided(scope: CodeScope, call: ast.Call, text: str) -> bool:
    """Return True for a division of the sum after the call."""
    for node in scope.nodes:
        if getattr(node, "lineno", 0) < call.lineno:
            continue
        match node:
            case ast.BinOp(left=left, op=ast.Div()) if text in ast.unparse(left):
                return True
            case ast.AugAssign(target=target, op=ast.Div()) if dotted_name(target) == text:
                return True
            case _:
                pass
    return False
