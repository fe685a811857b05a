"""Find parameters that a program adds, freezes or unfreezes after DDP wrapped their model.

DDP registers the parameters that require gradients when it is constructed, once. Source:
torch.nn.parallel.DistributedDataParallel (2.13.0), docstring.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import (
    CodeScope,
    Words,
    argument,
    iter_scopes,
    walk,
    walk_nodes,
)
from holdfast.lint.sources.modules import Module, SymbolTable, last_name

_WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_WORDS = Words((".module.", ".module[", "Parallel(", "DDP("))
_TRAINABLE = "requires_grad"


def find_changed_models(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield changes of a model after DDP wrapped it: of ``model.module``, or by its own name."""
    own = [module for module in modules if not module.is_test]
    if not any("Parallel" in module.text for module in own):
        return
    switching = {name for module in own for name in _switching_functions(module)}
    for module in own:
        if _WORDS.occur_in(module.text) and "Parallel" in module.text:
            for scope in iter_scopes(module, names, _WORDS):
                yield from _changes_in(scope, switching)
        elif ".module." in module.text and any(name in module.text for name in switching):
            for scope in iter_scopes(module, names, Words((".module.",))):
                yield from _switches_elsewhere(scope, switching)


def _switching_functions(module: Module) -> Iterator[str]:
    """Yield the functions that freeze or unfreeze the parameters of their first argument."""
    if _TRAINABLE not in module.text:
        return
    for function in module.functions():
        parameters = [name for name in function.parameters if name not in ("self", "cls")]
        for node in walk_nodes(*getattr(function.node, "body", ())):
            match node:
                case ast.For(target=ast.Name(id=name), iter=ast.Call() as over, body=body):
                    held = {each.id for each in ast.walk(over) if isinstance(each, ast.Name)}
                    if held & set(parameters[:1]) and any(
                        _switches(each, name) for each in walk_nodes(*body)
                    ):
                        yield function.name
                case _:
                    pass


def _changes_in(scope: CodeScope, switching: Collection[str]) -> Iterator[Divergence]:
    wrapped = dict(_wrapped_in(scope, scope.nodes))
    last = max(wrapped.values(), default=0)
    if scope.owner is not None and not wrapped:
        wrapped = {name: 0 for name, _ in _wrapped_in(scope, walk(scope.owner)) if "." in name}
    inner = {} if scope.owner is not None and not last else dict(_names_inside(scope))
    for node in scope.nodes if wrapped else ():
        if getattr(node, "lineno", 0) <= last:
            continue
        model = _changed_model(scope, node, switching)
        if model not in wrapped:
            model = inner.get(_changed_owner(scope, node, switching), "")
        if model in wrapped:
            yield _divergence(scope, node, model)
            return


def _switches_elsewhere(scope: CodeScope, switching: Collection[str]) -> Iterator[Divergence]:
    """Yield a call that freezes or unfreezes a part of ``trainer.model.module``."""
    for call in scope.calls:
        model = _changed_model(scope, call, switching) if _is_switch(call, switching) else ""
        if "model" in model:
            yield _divergence(scope, call, model)
            return


def _divergence(scope: CodeScope, node: ast.AST, model: str) -> Divergence:
    at = scope.location(node)
    detail = (
        f"DDP averages the gradients of the parameters that `{model}` had, and that "
        "required gradients, when it was wrapped: what changes afterwards is not averaged "
        "over ranks; change the model first"
    )
    return Divergence("habit-state", at, at, model, (), detail=detail, by_name=True)


def _names_inside(scope: CodeScope) -> Iterator[tuple[str, str]]:
    """Yield the variable that a wrapper is given, and the one that holds the wrapper."""
    for node in scope.nodes:
        if isinstance(node, ast.Assign) and scope.library_call_name(node.value) in _WRAPPERS:
            given = argument(node.value, 0, "module") if isinstance(node.value, ast.Call) else None
            name = ast.unparse(node.targets[0])
            if isinstance(given, (ast.Name, ast.Attribute)) and ast.unparse(given) != name:
                yield ast.unparse(given), name


def _wrapped_in(scope: CodeScope, nodes: Collection[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the variables and attributes that hold a model wrapped in DDP, with the line."""
    for node in nodes:
        if isinstance(node, ast.Assign) and scope.library_call_name(node.value) in _WRAPPERS:
            yield ast.unparse(node.targets[0]), node.lineno


def _changed_model(scope: CodeScope, node: ast.AST, switching: Collection[str]) -> str:
    """Return the model of which a statement adds a part, or freezes or unfreezes parameters."""
    part = _changed_part(scope, node, switching)
    return _model_of(part) if part is not None else ""


def _changed_owner(scope: CodeScope, node: ast.AST, switching: Collection[str]) -> str:
    """Return the variable of whose value a statement changes a part."""
    part = _changed_part(scope, node, switching)
    if isinstance(part, ast.Call):
        part = part.func.value if isinstance(part.func, ast.Attribute) else None
    while isinstance(part, ast.Attribute) and ast.unparse(part.value) != "self":
        part = part.value
    return ast.unparse(part) if part is not None else ""


def _changed_part(scope: CodeScope, node: ast.AST, switching: Collection[str]) -> ast.expr | None:
    match node:
        case ast.Assign(targets=[ast.Attribute(value=owner)], value=value):
            return owner if _is_new_module(scope, value) else None
        case ast.Call(func=ast.Attribute(value=owner, attr="requires_grad_")):
            return owner
        case ast.Call(args=[part, *_]) if _is_switch(node, switching):
            return part
        case ast.For(target=ast.Name(id=name), iter=over, body=body):
            return over if any(_switches(each, name) for each in walk_nodes(*body)) else None
        case _:
            return None


def _is_switch(call: ast.Call, switching: Collection[str]) -> bool:
    return last_name(call.func) in switching


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
