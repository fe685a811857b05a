"""Resolve calls to functions of the program, and find the callers of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from holdfast.lint.patterns.scopes import LOOPS, CodeScope, Words, iter_scopes, walk_nodes
from holdfast.lint.sources.modules import Class, Function, last_name

#: Maximum number of calling functions to check.
_MAX_CALLERS = 100


def resolve_callee(scope: CodeScope, call: ast.Call) -> Function | None:
    """Return the called function or method; None for a library's or an unresolved one."""
    definition = scope.resolve(call.func)
    if isinstance(definition, Function):
        return definition
    if isinstance(call.func, ast.Attribute):
        receiver_class = _receiver_class(scope, call.func.value)
        if receiver_class is not None:
            return scope.symbols.find_method(receiver_class, call.func.attr)
    return None


def scope_of_function(function: Function, like: CodeScope) -> CodeScope | None:
    """Return the scope of a function; None for a lambda."""
    if isinstance(function.node, ast.Lambda):
        return None
    owner = function.owner.node if function.owner is not None else None
    return CodeScope(
        function.module, like.symbols, function.node, owner, walk_nodes(*function.node.body)
    )


def _receiver_class(scope: CodeScope, receiver: ast.expr) -> Class | None:
    """Return the program class of a receiver: ``Meter()``, a variable, or an attribute."""
    if isinstance(receiver, ast.Call):
        definition = scope.resolve(receiver.func)
        return definition if isinstance(definition, Class) else None
    home = scope
    if isinstance(receiver, ast.Attribute):
        if scope.own_class is None:
            return None
        constructor = scope.symbols.find_method(scope.own_class, "__init__")
        builder = scope_of_function(constructor, scope) if constructor is not None else None
        if builder is None:
            return None
        home = builder
    name = ast.unparse(receiver) if isinstance(receiver, (ast.Name, ast.Attribute)) else ""
    classes = {
        home.resolve(node.value.func) if isinstance(node.value, ast.Call) else ""
        for node in home.nodes
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target) == name for target in node.targets)
    }
    only_class = classes.pop() if len(classes) == 1 else None
    return only_class if isinstance(only_class, Class) else None


def find_callers(scope: CodeScope) -> Iterator[tuple[CodeScope, ast.Call]]:
    """Yield the calls of a function or method, except on receivers created in the same loop."""
    words = Words((f"{scope.name}(",))
    if scope.name.startswith("__") or isinstance(scope.node, ast.Module):
        return
    calling_scopes = (
        caller_scope
        for module in scope.symbols.modules.values()
        if words.occur_in(module.text)
        for caller_scope in iter_scopes(module, scope.symbols, words)
    )
    for caller in islice(calling_scopes, _MAX_CALLERS):
        for call in caller.calls:
            if last_name(call.func) == scope.name and not _is_temporary_receiver(caller, call.func):
                called = resolve_callee(caller, call)
                if called is not None and called.node is scope.node:
                    yield caller, call


def _is_temporary_receiver(scope: CodeScope, called: ast.expr) -> bool:
    """Return True if the receiver is created at the call or in a loop."""
    receiver = called.value if isinstance(called, ast.Attribute) else None
    if isinstance(receiver, ast.Call):
        return True
    name = receiver.id if isinstance(receiver, ast.Name) else ""
    return bool(name) and any(
        isinstance(node, ast.Assign) and any(last_name(target) == name for target in node.targets)
        for loop in scope.nodes
        if isinstance(loop, LOOPS)
        for node in walk_nodes(*loop.body)
    )
