"""Find buffers that are used between the start of an async collective and its wait."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, argument, walk_nodes

#: Methods that read no elements.
_METADATA = frozenset({
    "size", "numel", "dim", "nelement", "element_size", "view", "reshape", "data_ptr", "is_cuda",
    "record_stream", "contiguous", "stride", "storage", "untyped_storage", "detach", "flatten",
})  # fmt: skip
#: Methods that read the tensor that they get.
_READING_METHODS = frozenset({"copy_", "add_", "sub_", "mul_", "div_", "add", "mul", "matmul"})


def find_early_use(
    scope: CodeScope, start: ast.stmt, call: ast.Call, name: str, handle: ast.expr
) -> Iterator[Divergence]:
    """Yield the first use of a buffer before the statement that reads the handle.

    Only statements of the same block count. The buffer of a send may be read, and that of another
    collective neither read nor written. Streams order uses in other ways, and are left out.
    """
    buffer = argument(call, 0, "tensor")
    if not isinstance(buffer, (ast.Name, ast.Attribute)) or isinstance(scope.node, ast.Module):
        return
    text, waited = ast.unparse(buffer), ast.unparse(handle)
    if "stream" in ast.unparse(scope.node).lower():
        return
    for statement in _following(scope, start):
        nodes = walk_nodes(statement)
        if any(_names(node, waited) or _may_wait(node) for node in nodes):
            return
        written = _assigns(statement, text)
        for node in nodes:
            reads = name != "isend" and not written and _reads(scope, node, text)
            if reads or changes_in_place(node, text):
                at, started = scope.location(node), scope.location(call)
                yield Divergence("handle-early", at, started, name, (), detail=text)
                return
        if written:
            return


def _following(scope: CodeScope, start: ast.stmt) -> Sequence[ast.stmt]:
    """Return the statements after one, in its block."""
    for node in (scope.node, *scope.nodes):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and start in block:
                return block[block.index(start) + 1 :]
    return ()


def _names(node: ast.AST, text: str) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == text


def _may_wait(node: ast.AST) -> bool:
    """Return True for what leaves the block or waits."""
    leaves = isinstance(node, (ast.Break, ast.Continue, ast.Raise, ast.Yield))
    waits = isinstance(node, ast.Attribute) and node.attr in ("wait", "synchronize", "barrier")
    return leaves or waits


def _assigns(statement: ast.stmt, text: str) -> bool:
    """Return True if the name stands for another tensor from here on."""
    return isinstance(statement, ast.Assign) and any(
        ast.unparse(target) == text for target in statement.targets
    )


def changes_in_place(node: ast.AST, text: str) -> bool:
    """Return True for ``x += 1``, ``x[0] = 1`` and ``x.zero_()``."""
    match node:
        case ast.AugAssign(target=target):
            return text in (ast.unparse(target), ast.unparse(getattr(target, "value", target)))
        case ast.Subscript(value=value, ctx=ast.Store()):
            return ast.unparse(value) == text
        case ast.Call(func=ast.Attribute(value=value, attr=method)):
            in_place = method.endswith("_") and not method.startswith("_")
            return in_place and method != "requires_grad_" and ast.unparse(value) == text
        case _:
            return False


def _reads(scope: CodeScope, node: ast.AST, text: str) -> bool:
    """Return True for an operation on the elements of the tensor."""
    match node:
        case ast.BinOp(left=left, right=right):
            return text in (ast.unparse(left), ast.unparse(right))
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if ast.unparse(value) == text:
            return method not in _METADATA
        case ast.Call(func=called, args=arguments):
            name = scope.library_call_name(node)
            # collectives run in the order of their start
            computes = name.startswith("torch.") and not name.startswith("torch.distributed.")
            reads = isinstance(called, ast.Attribute) and called.attr in _READING_METHODS
            if not reads and (not computes or name.endswith("_like")):
                return False
            return any(_is_tensor(each, text) for each in arguments)
        case _:
            return False


def _is_tensor(node: ast.expr, text: str) -> bool:
    """Return True for the tensor, in another shape too."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.startswith(("view", "reshape")) and _is_tensor(node.func.value, text)
    return ast.unparse(node) == text
