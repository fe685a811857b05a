"""Find training loops that wait for the GPU in each iteration or never average gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.call_graph import find_callers, resolve_callee, scope_of_function
from holdfast.lint.patterns.micro_batches import find_unaveraged_steps
from holdfast.lint.patterns.scopes import LOOPS, CodeScope, walk_nodes
from holdfast.lint.sources.modules import FUNCTIONS, dotted_name

#: Methods and functions that copy a value to the host, and the maximum call depth to search.
_VALUE_METHODS = frozenset({"item", "tolist", "cpu", "numpy"})
_CONVERSIONS = frozenset({"float", "int"})
_MAX_DEPTH = 3
#: Without these words a program has only one process, or no device.
_DISTRIBUTED_WORDS = re.compile(r"distributed|accelerat|deepspeed|lightning|\bDDP\b|\bFSDP\b")
_DEVICE_WORDS = re.compile(r"\bcuda\b|\bdevice\b|accelerat|deepspeed")
#: Maximum number of calls in a loop to follow.
_MAX_CALLS = 200
#: Loops with at most this many iterations are demonstrations, not training.
_SHORT_LOOP = 100
_AVERAGING_NAME = re.compile(r"reduce|average|sync(?!$)|gather|broadcast")


def find_loop_patterns(scopes: Sequence[CodeScope]) -> Iterator[Divergence]:
    """Yield the divergences in the scopes of one module."""
    for scope in scopes:
        yield from _unsynchronized_backward(scope)
        if "no_sync" in scope.module.text and not _averages_gradients(scope):
            yield from find_unaveraged_steps(scope)
    text = scopes[0].module.text if scopes else ""
    if _DISTRIBUTED_WORDS.search(text) and _DEVICE_WORDS.search(text):
        for scope in scopes:
            for loop in scope.nodes:
                if isinstance(loop, LOOPS) and not _is_short(loop) and not _is_test(scope):
                    yield from _synchronizations(scope, loop)
            yield from _step_synchronizations(scope)


# ---- synchronization with the GPU in each iteration


def _is_short(loop: ast.AST) -> bool:
    """Return True for a loop over a small constant range."""
    match loop:
        case ast.For(
            iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(rounds))])
        ):
            return rounds <= _SHORT_LOOP
        case _:
            return False


def _is_test(scope: CodeScope) -> bool:
    """Return True for a test, which inspects each loss on purpose."""
    return scope.name.startswith("test") or PurePath(scope.module.file).name.startswith("test_")


def _synchronizations(
    scope: CodeScope, loop: ast.For | ast.AsyncFor | ast.While
) -> Iterator[Divergence]:
    loop_nodes = walk_nodes(*loop.body, closed=(*LOOPS, *FUNCTIONS))
    tensors = _loss_tensors(loop_nodes)
    if not tensors:
        return
    synchronization = _first_synchronization(scope, loop.body, tensors)
    if synchronization is not None:
        yield _divergence(synchronization, scope, loop)


def _step_synchronizations(scope: CodeScope) -> Iterator[Divergence]:
    """Yield synchronizations in a step function, or on its result in the loop that calls it."""
    own_nodes = walk_nodes(*scope.node.body, closed=(*LOOPS, *FUNCTIONS))
    tensors = _loss_tensors(own_nodes)
    if not tensors or _is_test(scope):
        return
    inner = _first_synchronization(scope, scope.node.body, tensors)
    returns_tensor = all(
        _is_tensor(statement.value, tensors)
        for statement in own_nodes
        if isinstance(statement, ast.Return) and statement.value is not None
    )
    for caller, call in find_callers(scope):
        for loop in caller.nodes:
            if (
                not isinstance(loop, LOOPS)
                or _is_short(loop)
                or _is_test(caller)
                or call not in _unconditional_nodes(loop.body)
            ):
                continue
            results = _assigned_to(loop.body, call) if returns_tensor else set()
            synchronization = inner or (
                _first_synchronization(caller, loop.body, results) if results else None
            )
            if synchronization is not None:
                yield _divergence(synchronization, caller, loop)
                return


def _divergence(
    synchronization: tuple[CodeScope, ast.expr], scope: CodeScope, loop: ast.stmt
) -> Divergence:
    home, node = synchronization
    return Divergence("hot-sync", home.location(node), scope.location(loop), ast.unparse(node), ())


def _assigned_to(body: Sequence[ast.stmt], call: ast.Call) -> set[str]:
    """Return the variables that hold the result of a call."""
    return {
        target.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign) and node.value is call
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _loss_tensors(nodes: Iterable[ast.AST]) -> set[str]:
    """Return names of tensors on which backward is called, their terms, and derived tensors."""
    nodes = list(nodes)
    tensors: set[str] = set()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="backward", value=value), args=args):
                tensors |= set(_operand_names(args[0] if args else value))
            case _:
                pass
    if not tensors:
        return tensors
    assigned = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for name in list(tensors):
        value_of_name = assigned.get(name)
        if isinstance(value_of_name, ast.BinOp):
            tensors |= {
                operand
                for operand in _operand_names(value_of_name)
                if isinstance(assigned.get(operand), (ast.Call, ast.Subscript))
            }
    for name, value in assigned.items():
        clipped = isinstance(value, ast.Call) and ast.unparse(value.func).endswith(
            "clip_grad_norm_"
        )
        if clipped or (not isinstance(value, ast.Name) and _is_tensor(value, tensors)):
            tensors.add(name)
    return tensors


def _operand_names(node: ast.expr) -> Iterator[str]:
    """Yield names of tensors in an expression: ``a`` and ``b`` in ``scaler.scale(a + b / n)``."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _operand_names(left)
            yield from _operand_names(right)
        case ast.BinOp(left=ast.Constant() | ast.Attribute(), op=ast.Mult(), right=right):
            yield from _operand_names(right)
        case ast.BinOp(left=left):
            yield from _operand_names(left)
        case ast.Call(args=[first, *_]):
            yield from _operand_names(first)
        case ast.Call(func=ast.Attribute(value=value)):
            yield from _operand_names(value)
        case _:
            pass


def _is_tensor(node: ast.expr, tensors: set[str]) -> bool:
    """Return True if an expression is a device tensor, derived from one by methods or operators."""
    match node:
        case ast.Name(id=name):
            return name in tensors
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return (
                attr not in _VALUE_METHODS
                and attr not in ("backward", "size", "dim")
                and _is_tensor(value, tensors)
            )
        case ast.Attribute(value=value, attr="data"):
            return _is_tensor(value, tensors)
        case ast.BinOp(left=left, right=right):
            return _is_tensor(left, tensors) or _is_tensor(right, tensors)
        case _:
            return False


def _first_synchronization(
    scope: CodeScope,
    body: Sequence[ast.stmt],
    tensors: set[str],
    visited: frozenset[int] = frozenset(),
) -> tuple[CodeScope, ast.expr] | None:
    """Return the first expression that copies a tensor to the host in each iteration."""
    tried = 0
    for node in _unconditional_nodes(body):
        if isinstance(node, ast.Call) and dotted_name(node.func).endswith("cuda.synchronize"):
            return None  # on purpose; what follows has nothing to wait for
        if _synchronizes(node, tensors) and isinstance(node, ast.expr):
            return scope, node
        if isinstance(node, ast.Call) and len(visited) < _MAX_DEPTH and tried < _MAX_CALLS:
            tried += 1
            synchronization = _synchronization_in_callee(scope, node, tensors, visited)
            if synchronization is not None:
                return synchronization
    return None


def _synchronizes(node: ast.AST, tensors: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _VALUE_METHODS:
            wraps_tensor = (
                attr == "item"
                and isinstance(value, ast.Call)
                and any(_is_tensor(arg, tensors) for arg in value.args)
            )
            return wraps_tensor or _is_tensor(value, tensors)
        case ast.Call(func=ast.Name(id=name), args=[value]) if name in _CONVERSIONS:
            return _is_tensor(value, tensors)
        case ast.Call(func=ast.Name(id="print"), args=args):
            return any(_is_tensor(arg, tensors) for arg in args)
        case ast.FormattedValue(value=value):
            return _is_tensor(value, tensors)
        case _:
            return False


def _unconditional_nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield nodes evaluated in each iteration: outside of conditions, inner loops and functions."""
    for statement in body:
        match statement:
            case ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner):
                for item in items:
                    yield from _eager_nodes(item.context_expr)
                yield from _unconditional_nodes(inner)
            case ast.Try(body=inner):
                yield from _unconditional_nodes(inner)
            case ast.If(test=test):
                if any(
                    isinstance(node, ast.Continue) for node in walk_nodes(statement)
                ) and _has_modulo(test):
                    return
            case (
                ast.For()
                | ast.AsyncFor()
                | ast.While()
                | ast.FunctionDef()
                | ast.AsyncFunctionDef()
                | ast.ClassDef()
            ):
                pass
            case _:
                yield from _eager_nodes(statement)


def _has_modulo(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in walk_nodes(test)
    )


def _eager_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes that are evaluated whenever the whole is, outermost first."""
    yield node
    match node:
        case ast.IfExp(test=test):
            yield from _eager_nodes(test)
        case ast.BoolOp(values=[first, *_]):
            yield from _eager_nodes(first)
        case ast.Lambda():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _eager_nodes(child)


def _synchronization_in_callee(
    scope: CodeScope, call: ast.Call, tensors: set[str], visited: frozenset[int]
) -> tuple[CodeScope, ast.expr] | None:
    """Return a synchronization in a called function that receives one of the tensors."""
    function = resolve_callee(scope, call)
    inner = scope_of_function(function, scope) if function is not None else None
    if function is None or inner is None or id(inner.node) in visited:
        return None
    names = function.parameters[int(function.owner is not None) :]
    passed = {name for name, arg in zip(names, call.args, strict=False) if _is_tensor(arg, tensors)}
    passed |= {
        keyword.arg
        for keyword in call.keywords
        if keyword.arg in names and _is_tensor(keyword.value, tensors)
    }
    if passed:
        return _first_synchronization(inner, inner.node.body, passed, visited | {id(inner.node)})
    return None


# ---- gradients that are never averaged


def _unsynchronized_backward(scope: CodeScope) -> Iterator[Divergence]:
    """Yield functions in which every backward before a step is inside ``with model.no_sync()``."""
    blocks = [
        node
        for node in scope.nodes
        if isinstance(node, ast.With)
        and any(_is_method_call(item.context_expr, "no_sync") for item in node.items)
    ]
    if not blocks:
        return
    in_no_sync = {id(node) for block in blocks for node in walk_nodes(*block.body)}
    backward = [node for node in scope.nodes if _is_method_call(node, "backward")]
    if (
        not backward
        or not all(id(node) in in_no_sync for node in backward)
        or _averages_gradients(scope)
    ):
        return
    first = next(
        block for block in blocks if any(node is backward[0] for node in walk_nodes(*block.body))
    )
    nearby = [scope, *(caller for caller, _ in find_callers(scope))]
    if any(
        _averages_gradients(caller_scope)
        or any(_is_method_call(node, "backward") for node in caller_scope.nodes)
        for caller_scope in nearby[1:]
    ):
        return
    step = next(
        (
            (caller_scope, node)
            for caller_scope in nearby
            for node in caller_scope.nodes
            if _is_optimizer_step(node)
        ),
        None,
    )
    if step is not None:
        step_scope, node = step
        yield Divergence(
            "no-sync", scope.location(first), step_scope.location(node), ast.unparse(node), ()
        )


def _is_optimizer_step(node: ast.AST) -> bool:
    """Return True for an optimizer step."""
    return _is_method_call(node, "step") and "opt" in ast.unparse(node).lower()


def _averages_gradients(scope: CodeScope) -> bool:
    """Return True if the scope may average gradients."""
    return any(
        isinstance(node, ast.Call)
        and _AVERAGING_NAME.search(ast.unparse(node.func).rpartition(".")[2])
        for node in scope.nodes
        if not _is_method_call(node, "no_sync")
    )


def _is_method_call(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    )
