"""Find handles of async collectives that are never awaited although the buffer is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from holdfast.lint import library
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.call_graph import resolve_callee
from holdfast.lint.patterns.early_uses import find_early_use
from holdfast.lint.patterns.handles_in_loops import find_loop_handles
from holdfast.lint.patterns.scopes import CodeScope, Words, argument, iter_scopes, walk_nodes
from holdfast.lint.sources.modules import Function, Module

#: Method names that library objects have too.
_LIBRARY_METHOD_NAMES = frozenset(
    name for methods in library.METHODS.values() for name in methods
) | {name.rpartition(".")[2] for name in library.CALLS}
_TORCH_DISTRIBUTED = "torch.distributed."
_ASYNC_MESSAGES = frozenset({f"{_TORCH_DISTRIBUTED}isend", f"{_TORCH_DISTRIBUTED}irecv"})
#: A function that starts more is generated code.
_MAX_STARTED = 200
#: Calls that wait for all started operations.
_SYNCHRONIZING = frozenset(
    {"torch.cuda.synchronize", f"{_TORCH_DISTRIBUTED}barrier", "torch.cuda.current_stream"}
)


class ReturnedHandle(NamedTuple):
    """A collective's handle that a function returns, if ``parameter`` (if any) is ``answer``."""

    name: str
    parameter: str = ""
    answer: bool = True


class HandleAnalysis:
    """Track handles through a program; ``returned_handles`` are those that functions return."""

    def __init__(self, scopes: Sequence[Sequence[CodeScope]], modules: Collection[Module]) -> None:
        self.scopes = [scope for module_scopes in scopes for scope in module_scopes]
        self.returned_handles: dict[int, ReturnedHandle] = {}
        self.methods: dict[str, Function] = {}
        for scope in self.scopes:
            handle = self._returned_handle(scope)
            if handle is not None:
                self.returned_handles[id(scope.node)] = handle
        if self.returned_handles:
            self.methods = dict(self._handle_methods(modules))

    def _handle_methods(self, modules: Collection[Module]) -> Iterator[tuple[str, Function]]:
        """Yield methods that return a handle, if all others of that name are stubs."""
        named: dict[str, list[Function]] = {}
        names = {
            scope.name
            for scope in self.scopes
            if id(scope.node) in self.returned_handles and scope.owner is not None
        }
        for module in modules:
            for function in module.functions():
                if function.name in names:
                    named.setdefault(function.name, []).append(function)
        for name, functions in named.items():
            returning = [method for method in functions if id(method.node) in self.returned_handles]
            if len(returning) == 1 and all(
                method is returning[0] or _is_stub(method.node) for method in functions
            ):
                yield name, returning[0]

    def find_lost(self, modules: Collection[Module]) -> Iterator[Divergence]:
        """Yield lost handles in the scopes and in callers of functions that return a handle."""
        done = {id(scope.node) for scope in self.scopes}
        for scope in self.scopes:
            yield from self._lost_in_scope(scope, modules)
            yield from find_loop_handles(scope)
        if not self.returned_handles or not self.scopes:
            return
        names = {scope.name for scope in self.scopes if id(scope.node) in self.returned_handles}
        words = Words(tuple(f"{name}(" for name in sorted(names)))
        for module in modules:
            if not words.occur_in(module.text):
                continue
            for scope in iter_scopes(module, self.scopes[0].symbols, words):
                if id(scope.node) not in done:
                    yield from self._lost_in_scope(scope, modules)

    def _started_collective(self, scope: CodeScope, node: ast.AST | None) -> str:
        """Return the collective whose handle a call always returns; empty for other calls."""
        handle = self._call_handle(scope, node)
        return handle.name if handle is not None and not handle.parameter else ""

    def _call_handle(self, scope: CodeScope, node: ast.AST | None) -> ReturnedHandle | None:
        """Return the handle of a call, unconditional or dependent on a parameter of the caller."""
        if not isinstance(node, ast.Call):
            return None
        definition = scope.resolve(node.func)
        if isinstance(definition, str) and definition:
            if definition in _ASYNC_MESSAGES:
                return ReturnedHandle(definition.removeprefix(_TORCH_DISTRIBUTED))
            if definition in library.CALLS and definition.startswith(_TORCH_DISTRIBUTED):
                return _async_handle(
                    definition.removeprefix(_TORCH_DISTRIBUTED),
                    argument(node, len(node.args), "async_op"),
                    scope.parameters,
                )
            return None
        return self._function_handle(
            scope,
            node,
            definition if isinstance(definition, Function) else self._called_method(scope, node),
        )

    def _function_handle(
        self, scope: CodeScope, call: ast.Call, function: Function | None
    ) -> ReturnedHandle | None:
        """Return the handle that a program function returns for this call."""
        handle = self.returned_handles.get(id(function.node)) if function is not None else None
        if function is None or handle is None or not handle.parameter:
            return handle
        at = function.parameters.index(handle.parameter) - (
            isinstance(call.func, ast.Attribute) and bool(function.owner)
        )
        value = argument(call, at, handle.parameter)
        if value is None and not any(keyword.arg is None for keyword in call.keywords):
            value = _parameter_default(function, handle.parameter)
        if isinstance(value, ast.Constant):
            return ReturnedHandle(handle.name) if value.value is handle.answer else None
        return _async_handle(handle.name, value, scope.parameters) if handle.answer else None

    def _called_method(self, scope: CodeScope, call: ast.Call) -> Function | None:
        """Return the called method: of a known class, else of the only class that implements it."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        named = self.methods.get(name)
        if named is None:
            return None
        known = resolve_callee(scope, call)
        if known is not None:
            return known
        handle = self.returned_handles[id(named.node)]
        # an option that only this method has
        by_name = any(keyword.arg == handle.parameter for keyword in call.keywords)
        return named if by_name or name not in _LIBRARY_METHOD_NAMES else None

    def _returned_handle(self, scope: CodeScope) -> ReturnedHandle | None:
        """Return the handle that a function returns on all paths, apart from None."""
        assigned = {
            node.targets[0].id: handle
            for node in scope.nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and (handle := self._call_handle(scope, node.value))
        }
        returned = [node.value for node in scope.nodes if isinstance(node, ast.Return)]
        handles = {
            assigned.get(value.id)
            if isinstance(value, ast.Name)
            else self._call_handle(scope, value)
            for value in (
                expression.body if isinstance(expression, ast.IfExp) else expression
                for expression in returned
            )
            if value is not None and not (isinstance(value, ast.Constant) and value.value is None)
        }
        return handles.pop() if len(handles) == 1 else None

    def _lost_in_scope(self, scope: CodeScope, modules: Collection[Module]) -> Iterator[Divergence]:
        coalesced = {
            id(node)
            for block in scope.nodes
            if isinstance(block, ast.With)
            and "coalescing" in ast.unparse(block.items[0].context_expr)
            for node in walk_nodes(*block.body)
        }
        tried = 0
        for node in scope.nodes:
            if (
                tried > _MAX_STARTED
                or not isinstance(node, (ast.Expr, ast.Assign))
                or not isinstance(call := node.value, ast.Call)
            ):
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else _appended_to(call)
            is_appended = not isinstance(node, ast.Assign) and target is not None
            if is_appended and not isinstance(call := call.args[0], ast.Call):
                continue
            name = self._started_collective(scope, call)
            tried += bool(name)
            is_stored = (
                bool(name)
                and target is not None
                and not self._is_never_read(scope, target, modules)
            )
            if (
                name not in ("", "barrier")
                and not is_stored
                and id(node) not in coalesced
                and not self._is_awaited_later(scope, call)
            ):
                buffer = self._used_buffer(scope, call)
                if buffer is not None:
                    location = scope.location(call)
                    yield Divergence(
                        "handle", location, location, name, (), detail=ast.unparse(buffer)
                    )
            elif is_stored and target is not None and name not in ("", "barrier"):
                yield from find_early_use(scope, node, call, name, target)

    def _is_never_read(
        self, scope: CodeScope, target: ast.expr, modules: Collection[Module]
    ) -> bool:
        """Return True if nothing reads the variable or attribute with the handle."""
        match target:
            case ast.Name(id=name) if not isinstance(scope.node, ast.Module):
                nodes = list(ast.walk(scope.node))
                calls = [node for node in nodes if isinstance(node, ast.Call)]
                stored_in = [
                    (container, {call.args[0], *ast.walk(call.func)})
                    for call in calls
                    if (container := _appended_to(call)) is not None
                    and name in (ast.unparse(call.args[0]), ast.unparse(container))
                ]
                stores = {node for _, parts in stored_in for node in parts}
                is_read = any(
                    isinstance(node, (ast.Global, ast.Nonlocal))
                    or (
                        isinstance(node, ast.Name)
                        and node.id == name
                        and isinstance(node.ctx, ast.Load)
                        and node not in stores
                    )
                    for node in nodes
                )
                return not is_read and all(
                    ast.unparse(container) == name or self._is_never_read(scope, container, modules)
                    for container, _ in stored_in
                )
            case ast.Attribute(attr=name):
                # a test for None, a new value and a further handle wait for nothing
                unread = r"\s*=(?!=)|\.append\(|\s+is\s+(?:not\s+)?None\b"
                read = re.compile(rf"\.{name}\b(?!{unread})|['\"]{name}['\"]")
                return not any(
                    name in module.text and read.search(module.text) for module in modules
                )
            case _:
                return False

    @staticmethod
    def _is_awaited_later(scope: CodeScope, call: ast.Call) -> bool:
        """Return True if a later call waits for all started operations."""
        return any(
            later.lineno > call.lineno
            and (
                scope.library_call_name(later) in _SYNCHRONIZING
                or ast.unparse(later.func).endswith((".synchronize", ".barrier"))
            )
            for later in scope.calls
        )

    @staticmethod
    def _used_buffer(scope: CodeScope, call: ast.Call) -> ast.expr | None:
        """Return the collective's buffer if it is used afterwards, here or elsewhere."""
        buffer = argument(call, 0, "tensor") or next(
            (keyword.value for keyword in call.keywords), None
        )
        roots = (
            {child.id for child in walk_nodes(buffer) if isinstance(child, ast.Name)}
            if buffer is not None
            else set()
        )
        if isinstance(buffer, ast.Attribute) or roots & set(scope.parameters):
            return buffer
        end = call.end_lineno or call.lineno
        for node in scope.nodes:
            if (
                isinstance(node, ast.Name)
                and node.id in roots
                and isinstance(node.ctx, ast.Load)
                and node.lineno > end
            ):
                return buffer
        return None


def _appended_to(call: ast.Call) -> ast.expr | None:
    """Return the list to which a call appends its only argument."""
    match call:
        case ast.Call(func=ast.Attribute(value=container, attr="append"), args=[_]):
            return container
        case _:
            return None


def _async_handle(
    name: str, value: ast.expr | None, parameters: Sequence[str]
) -> ReturnedHandle | None:
    """Return the handle for an ``async_op`` value: True, a parameter, or a negated parameter."""
    match value:
        case ast.Constant(value=True):
            return ReturnedHandle(name)
        case ast.Name(id=parameter) if parameter in parameters:
            return ReturnedHandle(name, parameter)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=parameter)) if parameter in parameters:
            return ReturnedHandle(name, parameter, answer=False)
        case _:
            return None


def _parameter_default(function: Function, parameter: str) -> ast.expr | None:
    """Return the default of a parameter."""
    defaults = function.node.args.defaults
    at = function.parameters.index(parameter) - len(function.parameters) + len(defaults)
    return defaults[at] if at >= 0 else None


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    """Return True for a method that does nothing: docstring, pass, raise, or a constant."""
    return not isinstance(node, ast.Lambda) and all(
        isinstance(statement, (ast.Pass, ast.Raise))
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        or (
            isinstance(statement, ast.Return)
            and (statement.value is None or isinstance(statement.value, ast.Constant))
        )
        for statement in node.body
    )
