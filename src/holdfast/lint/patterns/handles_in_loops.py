"""Find async operations of a loop of which only the last is awaited, or whose buffer is reused."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.early_uses import changes_in_place
from holdfast.lint.patterns.scopes import LOOPS, CodeScope, argument, walk_nodes

_HOME = "torch.distributed."
#: Operations that only read their buffer, or only write it.
_ASYNC_MESSAGES = frozenset({f"{_HOME}isend", f"{_HOME}irecv"})
_WAITS = frozenset({"wait", "synchronize", "barrier", "is_completed"})


def find_loop_handles(scope: CodeScope) -> Iterator[Divergence]:
    """Yield operations whose handle the next round overwrites, and changes of their buffer."""
    for loop in scope.nodes:
        if not isinstance(loop, LOOPS):
            continue
        nodes = walk_nodes(*loop.body)
        if any(isinstance(node, ast.Attribute) and node.attr in _WAITS for node in nodes):
            continue
        for statement in loop.body:
            call = _started(scope, statement)
            if call is None:
                continue
            name = scope.library_call_name(call).removeprefix(_HOME)
            buffer, at = argument(call, 0, "tensor"), scope.location(call)
            if buffer is None:
                continue
            text = ast.unparse(buffer)
            if _is_overwritten(scope, loop, statement, nodes):
                yield Divergence("handle", at, at, name, (), detail=text)
            elif name == "isend" and isinstance(buffer, ast.Name) and not _assigns(nodes, text):
                changed = next((node for node in nodes if changes_in_place(node, text)), None)
                if changed is not None:
                    place = scope.location(changed)
                    yield Divergence("handle-early", place, at, name, (), detail=text)


def _started(scope: CodeScope, statement: ast.stmt) -> ast.Call | None:
    """Return the async operation that a statement starts, and whose handle it drops or keeps."""
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    match value:
        case ast.Call(func=ast.Attribute(attr="append"), args=[appended]):
            value = appended
        case _:
            pass
    if not isinstance(value, ast.Call):
        return None
    name = scope.library_call_name(value)
    flag = argument(value, len(value.args), "async_op")
    is_async = isinstance(flag, ast.Constant) and flag.value is True and name.startswith(_HOME)
    return value if name in _ASYNC_MESSAGES or is_async else None


def _is_overwritten(
    scope: CodeScope, loop: ast.AST, statement: ast.stmt, nodes: Sequence[ast.AST]
) -> bool:
    """Return True if a variable holds the handle, which only what follows the loop reads."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            if any(_reads(node, name) for node in nodes):
                return False
            end = getattr(loop, "end_lineno", 0)
            later = (node for node in scope.nodes if getattr(node, "lineno", 0) > end)
            return any(_reads(node, name) for node in later)
        case _:
            return False


def _reads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _assigns(nodes: Sequence[ast.AST], name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in nodes
    )
