"""Find broadcasts into a buffer of fixed size, of what the root sized by its data."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import is_rank_only
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.patterns.scopes import child_nodes, walk_nodes

_BROADCASTS = {
    "torch.distributed.broadcast": "tensor",
    "torch.distributed.broadcast_object_list": "object_list",
}
#: Methods that return a tensor of the same size, and those whose result has a size of its own.
_CONVERSIONS = frozenset({"to", "cuda", "long", "float", "int", "contiguous", "numpy", "cpu"})
_SIZED_BY_DATA = frozenset({"tolist", "split", "encode", "readlines", "glob", "rglob", "nonzero"})
_TENSORS = frozenset({"tensor", "as_tensor", "array", "asarray", "from_numpy"})
_EMPTY = frozenset({"empty", "zeros", "ones"})
_MAX_DEPTH = 4


def record_size_by_rank(state: InterpreterState, call: LibraryCall) -> None:
    """Record a broadcast whose buffer has a fixed size on one side of a test of the rank only."""
    node = call.arguments.node(0, _BROADCASTS.get(call.name, ""))
    if call.name not in _BROADCASTS or not isinstance(node, ast.Name):
        return
    nodes = walk_nodes(*child_nodes(call.frame.tree))
    for test, yes, no in _choices(nodes, node.id):
        sides = {_size_kind(yes, nodes), _size_kind(no, nodes)}
        content = state.evaluate(call.frame, test).content if sides == {"data", "fixed"} else ()
        if content and is_rank_only(content):
            message = (
                f"{call.name.rpartition('.')[2]} needs equal sizes, but `{node.id}` is sized by "
                f"data on one side of `{state.unparse(test)}` and has a fixed size on the other; "
                "broadcast the size first"
            )
            at, kind = call.location, "habit-argument"
            divergence = Divergence(kind, at, at, call.name, (), detail=message, by_name=True)
            state.summaries.current.divergences.setdefault((kind, at), divergence)
            return


def _choices(nodes: Sequence[ast.AST], name: str) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield tests with the values that a variable has on both sides."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.IfExp() as chosen):
                if target == name:
                    yield chosen.test, chosen.body, chosen.orelse
            case ast.If(test=test, body=body, orelse=orelse):
                yes, no = _assigned(body, name), _assigned(orelse, name)
                if yes is not None and no is not None:
                    yield test, yes, no


def _assigned(block: Sequence[ast.stmt], name: str) -> ast.expr | None:
    """Return the last value that a block assigns to a variable."""
    values = [
        statement.value
        for statement in block
        if isinstance(statement, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == name for each in statement.targets)
    ]
    return values[-1] if values else None


def _size_kind(node: ast.expr, nodes: Sequence[ast.AST], depth: int = 0) -> str:
    """Return ``data`` if the size depends on data, ``fixed`` for a constant, or nothing."""
    kind = ""
    match node:
        case ast.ListComp(generators=[ast.comprehension(iter=over, ifs=tests)]):
            fixed = isinstance(over, (ast.List, ast.Tuple)) or _is_constant_range(over)
            kind = "" if fixed and not tests else "data"
        case ast.List(elts=elements):
            kind = "" if any(isinstance(each, ast.Starred) for each in elements) else "fixed"
        case ast.BinOp(left=ast.List(), op=ast.Mult(), right=ast.Constant()):
            kind = "fixed"
        case ast.Call(func=ast.Name(id="list" | "sorted"), args=[over, *_]):
            kind = "" if isinstance(over, (ast.List, ast.Tuple)) else "data"
        case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments):
            kind = _size_of_call(inner, method, arguments, nodes, depth)
        case ast.Name(id=name) if depth < _MAX_DEPTH:
            values = [
                each.value
                for each in nodes
                if isinstance(each, ast.Assign)
                and isinstance(each.targets[0], ast.Name)
                and each.targets[0].id == name
            ]
            kind = _size_kind(values[0], nodes, depth + 1) if len(values) == 1 else ""
        case _:
            pass
    return kind


def _size_of_call(
    inner: ast.expr, method: str, arguments: list[ast.expr], nodes: Sequence[ast.AST], depth: int
) -> str:
    is_torch = isinstance(inner, ast.Name) and inner.id in ("torch", "np", "numpy")
    if is_torch and method in _TENSORS and arguments:
        return _size_kind(arguments[0], nodes, depth + 1)
    if is_torch and method in _EMPTY:
        return "fixed" if all(isinstance(each, ast.Constant) for each in arguments) else ""
    if method in _CONVERSIONS:
        return _size_kind(inner, nodes, depth + 1)
    return "data" if method in _SIZED_BY_DATA and not is_torch else ""


def _is_constant_range(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="range"), args=arguments):
            return all(isinstance(each, ast.Constant) for each in arguments)
        case _:
            return False
