"""Find parameters that a program adds, freezes or unfreezes after DDP wrapped their model.

DDP registers the parameters that require gradients when it is constructed, once. Source:
torch.nn.parallel.DistributedDataParallel (2.13.0), docstring.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, Words, iter_scopes, walk, walk_nodes
from holdfast.lint.sources.modules import Module, SymbolTable

_WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_WORDS = Words((".module.", ".module["))


def find_changed_models(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield changes of ``model.module`` in functions and classes that wrap ``model`` in DDP."""
    for module in modules:
        if module.is_test or not _WORDS.occur_in(module.text) or "Parallel" not in module.text:
            continue
        for scope in iter_scopes(module, names, _WORDS):
            yield from _changes_in(scope)


def _changes_in(scope: CodeScope) -> Iterator[Divergence]:
    wrapped = dict(_wrapped_in(scope, scope.nodes))
    last = max(wrapped.values(), default=0)
    if scope.owner is not None and not wrapped:
        wrapped = {name: 0 for name, _ in _wrapped_in(scope, walk(scope.owner)) if "." in name}
    for node in scope.nodes if wrapped else ():
        model = _changed_model(scope, node)
        if model in wrapped and getattr(node, "lineno", 0) > last:
            at = scope.location(node)
            detail = (
                f"DDP averages the gradients of the parameters that `{model}` had, and that "
                "required gradients, when it was wrapped: what changes afterwards is not averaged "
                "over ranks; change the model first"
            )
            yield Divergence("habit-state", at, at, model, (), detail=detail, by_name=True)
            return


def _wrapped_in(scope: CodeScope, nodes: Collection[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the variables and attributes that hold a model wrapped in DDP, with the line."""
    for node in nodes:
        if isinstance(node, ast.Assign) and scope.library_call_name(node.value) in _WRAPPERS:
            yield ast.unparse(node.targets[0]), node.lineno


def _changed_model(scope: CodeScope, node: ast.AST) -> str:
    """Return the model of which a statement adds a part, or freezes or unfreezes parameters."""
    match node:
        case ast.Assign(targets=[ast.Attribute(value=owner)], value=value):
            return _model_of(owner) if _is_new_module(scope, value) else ""
        case ast.Call(func=ast.Attribute(value=owner, attr="requires_grad_")):
            return _model_of(owner)
        case ast.For(target=ast.Name(id=name), iter=over, body=body):
            switches = any(_switches(each, name) for each in walk_nodes(*body))
            return _model_of(over) if switches else ""
        case _:
            return ""


def _switches(node: ast.AST, name: str) -> bool:
    """Return True for ``p.requires_grad = False`` and ``p.requires_grad_(False)``."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr="requires_grad", ctx=ast.Store()):
            return owner == name
        case ast.Attribute(value=ast.Name(id=owner), attr="requires_grad_"):
            return owner == name
        case _:
            return False


def _model_of(node: ast.expr) -> str:
    """Return what has the attribute ``module`` of which an expression is a part."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and each.attr == "module":
            return ast.unparse(each.value)
    return ""


def _is_new_module(scope: CodeScope, value: ast.expr) -> bool:
    """Return True for a new ``torch.nn`` module, on a device too."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in ("to", "cuda", "half", "float"):
            break
        value = value.func.value
    name = scope.library_call_name(value)
    return name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper()
