"""Decides which tests in a program depend on the rank, by names and by the values assigned to them.

A name depends on the rank if it is a usual name for one (``local_rank``, ``is_main_process``,
``get_rank()``, ``os.environ["RANK"]``) or was assigned from such a name through comparisons and
arithmetic, not through calls: a model created with ``device_ids=[rank]`` is no rank. A test whether
the job is distributed at all (``rank is None``, ``"RANK" in os.environ``, ``rank != -1``) has the
same result on all ranks. Arguments of functions are classified by their names alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.core.python_ast import FunctionNode, last_name

_SCOPE, _MAIN = r"(global_|local_|world_|rank_)", r"(main|master|zero|chief|primary|coordinator)"
_RANK = re.compile(
    r"_*((?P<of>\w+?)_)?rank(_?(id|0|zero))?"
    rf"|_*(on_|is_)?{_SCOPE}*{_MAIN}(_process|_rank|_worker)"
    rf"|_*is_{_SCOPE}*({_MAIN}|first_rank|last_rank)"
    r"|_*(get_|local_)*process_(index|id)"
)
_DECORATOR = re.compile(
    r"(only_)?(run_)?(on_)?(local_)?(rank_?(zero|0)|main_process|master|main_rank)(_only)?"
)
#: Prefixes of ``rank`` that do not mean a process.
_OTHER_RANKS = re.compile(
    r"(\w+_)?(low|lora|matrix|tensor|max|min|num|n|full|effective|target|page|src|dst|root)"
)
VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "GROUP_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "PMI_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_RANK",
    }
)
#: Functions whose result depends on the rank if an argument does.
_FORWARDING = frozenset(
    {"int", "bool", "str", "float", "abs", "min", "max", "get", "getenv", "item"}
)
_MAX_ROUNDS = 20


def is_rank_name(name: str) -> bool:
    """Return whether it is a usual name for the rank of a process, or for a test of it."""
    match = _RANK.fullmatch(name.lower())
    return match is not None and not (match["of"] and _OTHER_RANKS.fullmatch(match["of"]))


def is_rank_decorator(name: str) -> bool:
    """Return whether the decorator restricts a function to one rank: ``rank_zero_only``."""
    return _DECORATOR.fullmatch(name.lower()) is not None


@dataclass
class NameScope:
    """The names bound in a function or the module.

    ``dependent`` names have a value that depends on the rank. ``chosen`` names were assigned by a
    test of it: ``log = open_log() if rank == 0 else None``.
    """

    parent: NameScope | None = None
    bound: set[str] = field(default_factory=set)
    dependent: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)

    def owner(self, name: str) -> NameScope:
        """Return the scope that binds ``name``; that of the module if none does."""
        return self if name in self.bound or self.parent is None else self.parent.owner(name)


class RankNames:
    """The names in one file that depend on the rank."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = NameScope()
        self._scopes: dict[FunctionNode, NameScope] = {}
        self._attributes: set[str] = set()  # dotted, as written: self.is_first
        self._functions: set[str] = set()  # functions whose result depends on the rank
        self._assigned: list[tuple[NameScope, ast.expr, ast.expr]] = []
        self._returned: list[tuple[NameScope, str, ast.expr]] = []
        self._collect(tree, self.module, "")
        self._propagate()

    def scope(self, function: FunctionNode | None) -> NameScope:
        """Return the scope of ``function``; that of the module for None."""
        return self.module if function is None else self._scopes[function]

    def depends_on_rank(self, test: ast.AST, scope: NameScope) -> bool:
        """Return whether the result of ``test`` may differ between ranks."""
        if self._is_rank(test, scope):
            return True
        if isinstance(test, ast.Compare):
            is_chosen = (
                isinstance(test.left, ast.Name) and test.left.id in scope.owner(test.left.id).chosen
            )
            if _is_test_for_distributed(test) and not is_chosen:
                return False
            return any(self.depends_on_rank(operand, scope) for operand in _operands(test))
        if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name | ast.Attribute):
            return False  # self.x of a rank-dependent self.y
        return any(self.depends_on_rank(child, scope) for child in ast.iter_child_nodes(test))

    def _is_rank(self, node: ast.AST, scope: NameScope) -> bool:
        match node:
            case ast.Name(id=name):
                return is_rank_name(name) or name in scope.owner(name).dependent
            case ast.Attribute(attr=name):
                return is_rank_name(name) or ast.unparse(node) in self._attributes
            case ast.Call(func=function):
                return last_name(function) in self._functions
            case ast.Constant(value=str() as value):
                return value in VARIABLES
        return False

    def _is_rank_value(self, value: ast.AST, scope: NameScope) -> bool:
        """Return whether a name assigned from ``value`` depends on the rank."""
        is_rank = False
        match value:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                is_rank = self.depends_on_rank(test, scope)
                is_rank = is_rank or self._is_any_rank((body, orelse), scope)
            case ast.Compare():
                is_rank = self.depends_on_rank(value, scope)
            case ast.BinOp(left=ast.JoinedStr() | ast.Constant(value=str())):
                pass  # text with the rank in it
            case ast.BoolOp() | ast.UnaryOp() | ast.BinOp():
                is_rank = self._is_any_rank(ast.iter_child_nodes(value), scope)
            case ast.Subscript(slice=ast.Constant() as key):  # os.environ["RANK"]
                is_rank = self._is_rank(key, scope)
            case ast.Call(func=function, args=arguments):
                name = last_name(function)
                is_rank = is_rank_name(name) or name in self._functions
                is_rank = is_rank or (name in _FORWARDING and self._is_any_rank(arguments, scope))
            case _:
                is_rank = self._is_rank(value, scope)
        return is_rank

    def _is_any_rank(self, values: Iterable[ast.AST], scope: NameScope) -> bool:
        return any(self._is_rank_value(value, scope) for value in values)

    def _collect(self, node: ast.AST, scope: NameScope, function: str) -> None:
        """Collect what is bound, assigned and returned in each scope."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode):
                scope.bound.add(child.name)
                inner = NameScope(scope, {argument.arg for argument in _arguments(child.args)})
                self._scopes[child] = inner
                self._collect(child, inner, child.name)
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                scope.bound.add(child.id)
            elif isinstance(child, ast.Return) and child.value is not None and function:
                self._returned.append((scope, function, child.value))
            self._assigned.extend((scope, target, value) for target, value in _assignments(child))
            self._collect(child, scope, function)

    def _propagate(self) -> None:
        """Propagate through assignments until nothing changes."""
        for _ in range(_MAX_ROUNDS):
            before = self._size()
            for scope, target, value in self._assigned:
                if self._is_rank_value(value, scope):
                    self._mark(target, value, scope)
            self._functions |= {
                name for scope, name, value in self._returned if self._is_rank_value(value, scope)
            }
            if self._size() == before:
                return

    def _mark(self, target: ast.expr, value: ast.expr, scope: NameScope) -> None:
        if isinstance(target, ast.Name):
            owner = scope.owner(target.id)
            owner.dependent.add(target.id)
            if isinstance(value, ast.IfExp) and self.depends_on_rank(value.test, scope):
                owner.chosen.add(target.id)
        elif isinstance(target, ast.Attribute):
            self._attributes.add(ast.unparse(target))

    def _size(self) -> int:
        scopes = (self.module, *self._scopes.values())
        names = sum(len(scope.dependent) for scope in scopes)
        return len(self._attributes) + len(self._functions) + names


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None)


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target with its value; tuples such as ``a, b = x, y`` in pairs."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    value = (
        getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)
        else None
    )
    if not isinstance(value, ast.expr):
        return
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, ast.Tuple | ast.List) and len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts, strict=True)
        elif isinstance(target, ast.expr):
            yield target, value


def _operands(test: ast.Compare) -> Iterator[ast.expr]:
    """Yield the operands, without the constant in ``"RANK" in os.environ``."""
    if not (isinstance(test.ops[0], ast.In | ast.NotIn) and isinstance(test.left, ast.Constant)):
        yield test.left
    yield from test.comparators


def _is_test_for_distributed(test: ast.Compare) -> bool:
    """Return whether it is ``rank is None``, ``rank != -1``, ``rank >= 0`` or similar."""
    match test:
        case ast.Compare(
            ops=[_], comparators=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))]
        ):
            return True
        case ast.Compare(ops=[_], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Compare(ops=[ast.GtE() | ast.Lt()], comparators=[ast.Constant(value=0)]):
            return True
    return False
