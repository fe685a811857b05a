"""Decide which path expressions name the same file each time they are evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.lint.patterns.call_graph import find_callers
from holdfast.lint.patterns.scopes import LOOPS, CodeScope, argument, iter_scopes, walk_nodes

#: Maximum number of assignments to follow.
_MAX_DEPTH = 6
_COUNTER_NAME = re.compile(
    r"step|epoch|iter|round|count|index|idx|time|date|uuid|version", re.IGNORECASE
)
_PATH_FUNCTIONS = frozenset(
    {"os.path.join", "os.path.abspath", "os.path.expanduser", "pathlib.Path", "os.fspath"}
)


class PathAnalysis:
    """Resolve path expressions in a module with the given scopes, module level first."""

    def __init__(self, scopes: Sequence[CodeScope]) -> None:
        self.scopes = scopes
        self._callers: dict[ast.AST, list[tuple[CodeScope, ast.Call]]] = {}
        self._modules = {scopes[0].module.file: scopes}

    def _module_scopes(self, scope: CodeScope) -> Sequence[CodeScope]:
        """Return all scopes of the module, module level first."""
        module = scope.module
        if module.file not in self._modules:
            self._modules[module.file] = list(iter_scopes(module, scope.symbols))
        return self._modules[module.file]

    def stable_text(self, scope: CodeScope, node: ast.expr, depth: int = 0) -> str | None:
        """Return equal text for equal paths; None if the path may change between evaluations."""
        match node:
            case _ if depth > _MAX_DEPTH:
                return None
            case ast.Constant():
                return repr(node.value)
            case ast.Name():
                return self._name(scope, node.id, depth)
            case ast.Attribute():
                return self._attribute(scope, node, depth)
            case ast.Subscript(slice=ast.Constant()):
                return _stable_setting(ast.unparse(node))
            case _:
                return self._join_parts(scope, _path_parts(scope, node), depth)

    def _join_parts(self, scope: CodeScope, parts: Sequence[ast.expr], depth: int) -> str | None:
        texts = [self.stable_text(scope, part, depth + 1) for part in parts]
        if None in texts or not texts:
            return None
        return "/".join(text for text in texts if text is not None)

    def _attribute(self, scope: CodeScope, node: ast.Attribute, depth: int) -> str | None:
        """Resolve an attribute set once in the constructor; of other objects, a setting."""
        if not (
            isinstance(node.value, ast.Name) and node.value.id == "self" and scope.owner is not None
        ):
            return _stable_setting(ast.unparse(node))
        written = [
            (module_scope, value)
            for module_scope in self._module_scopes(scope)
            if module_scope.owner is scope.owner
            for value in _assigned_values(module_scope, f"self.{node.attr}")
        ]
        if len(written) != 1 or written[0][0].name != "__init__":
            return None
        assigned = written[0][1]
        known = (
            self.stable_text(written[0][0], assigned, depth + 1) if assigned is not None else None
        )
        return known or f"{scope.owner.name}.{node.attr}"

    def _name(self, scope: CodeScope, name: str, depth: int) -> str | None:
        values = _assigned_values(scope, name)
        if len(values) == 1 and name not in scope.parameters:
            return self.stable_text(scope, values[0], depth + 1) if values[0] is not None else None
        if values:
            return None
        if name in scope.parameters:
            return self._parameter(scope, name, depth)
        top = self._module_scopes(scope)[0]
        values_at_top = _assigned_values(top, name) if scope.node is not top.node else []
        if len(values_at_top) == 1 and values_at_top[0] is not None:
            return self.stable_text(top, values_at_top[0], depth + 1)
        return None

    def _parameter(self, scope: CodeScope, name: str, depth: int) -> str | None:
        """Return the path that all callers pass for a parameter."""
        texts = {
            self.stable_text(caller, passed, depth + 1) if passed is not None else None
            for caller, passed in self.arguments_for(scope, name)
        }
        return texts.pop() if len(texts) == 1 else None

    def arguments_for(
        self, scope: CodeScope, name: str
    ) -> Iterator[tuple[CodeScope, ast.expr | None]]:
        """Yield what each caller passes for a parameter; None if it is omitted."""
        for caller, call in self.callers(scope):
            at = scope.parameters.index(name) - (
                isinstance(call.func, ast.Attribute) and scope.owner is not None
            )
            yield caller, argument(call, at, name) if at >= 0 else None

    def callers(self, scope: CodeScope) -> list[tuple[CodeScope, ast.Call]]:
        """Return the calls of a function: by name in its module, resolved elsewhere."""
        known = self._callers.get(scope.node)
        if known is None:
            elsewhere = (
                caller for caller in find_callers(scope) if caller[0].module is not scope.module
            )
            known = self._callers[scope.node] = [*self._local_calls(scope), *elsewhere]
        return known

    def _local_calls(self, scope: CodeScope) -> list[tuple[CodeScope, ast.Call]]:
        calls = []
        for caller in self.scopes:
            for call in caller.calls:
                func = call.func
                name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
                is_local = name == scope.name and name != "__init__"
                if is_local and not caller.library_call_name(call):
                    calls.append((caller, call))
        return calls

    def runs_repeatedly(self, scope: CodeScope, node: ast.AST, depth: int = 0) -> bool:
        """Return True if a node runs repeatedly: in a loop, or in a function called in one."""
        if any(
            isinstance(child, LOOPS) and node in walk_nodes(*child.body) for child in scope.nodes
        ):
            return True
        return depth < _MAX_DEPTH and any(
            self.runs_repeatedly(caller, call, depth + 1)
            for caller, call in self.callers(scope)
            if caller is not scope
        )


def _stable_setting(text: str) -> str | None:
    """Return the text of an unknown attribute or element; None if its name suggests a counter."""
    return None if _COUNTER_NAME.search(text) else text


def _path_parts(scope: CodeScope, node: ast.expr) -> Sequence[ast.expr]:
    """Return the parts of a path; empty if unknown."""
    match node:
        case ast.JoinedStr(values=parts):
            return parts
        case ast.FormattedValue(value=value, format_spec=None):
            return [value]
        case ast.BinOp(left=left, op=ast.Div() | ast.Add(), right=right):
            return [left, right]
        case ast.Call(func=ast.Name(id="str" | "open"), args=[path, *_]):
            return [path]
        case ast.Call(args=parts) if scope.library_call_name(node) in _PATH_FUNCTIONS:
            return parts
        case _:
            return []


def _assigned_values(scope: CodeScope, name: str) -> list[ast.expr | None]:
    """Return the values assigned to a name (or ``self.path``); None for loop and tuple targets."""
    return [
        value
        for node in scope.nodes
        for target, value in _assignment_pairs(node)
        if ast.unparse(target) == name
    ]


def _assignment_pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs: list[tuple[ast.expr, ast.expr | None]] = [(target, value) for target in targets]
            inner = [
                part
                for target in targets
                if isinstance(target, (ast.Tuple, ast.List))
                for part in target.elts
            ]
            return pairs + [(element, None) for element in inner]
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            return [(target, value)]
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            return [(target, value)]
        case (
            ast.AugAssign(target=target) | ast.For(target=target) | ast.comprehension(target=target)
        ):
            return [(child, None) for child in walk_nodes(target) if isinstance(child, ast.expr)]
        case _:
            return []
