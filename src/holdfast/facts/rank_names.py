"""Which tests in a program ranks may answer differently, by the names in them and what was assigned to those names.

A name counts where it reads as a rank (``local_rank``, ``is_main_process``, ``get_rank()``, ``os.environ["RANK"]``) or
was assigned from one through comparisons and arithmetic, not through calls: a model made with ``device_ids=[rank]`` is
no rank. Asking whether there is a rank at all (``rank is None``, ``"RANK" in os.environ``, ``rank != -1``) is answered
alike everywhere. What a function is given as an argument is known by the argument's name alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_RANK = re.compile(
    r"_*((?P<of>\w+?)_)?rank(_?(id|0|zero))?"
    r"|_*(on_|is_)?(global_|local_|world_|rank_)*(main|master|zero|chief|primary|coordinator)(_process|_rank|_worker)"
    r"|_*is_(global_|local_|world_|rank_)*(main|master|zero|chief|primary|coordinator|first_rank|last_rank)"
    r"|_*(get_|local_)*process_(index|id)"
)
_DECORATOR = re.compile(r"(only_)?(run_)?(on_)?(local_)?(rank_?(zero|0)|main_process|master|main_rank)(_only)?")
#: Ranks of other things than processes.
_NO_RANK_OF = re.compile(r"(\w+_)?(low|lora|matrix|tensor|max|min|num|n|full|effective|target|page|src|dst|root)")
VARIABLES = frozenset({
    "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "PMI_RANK",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_RANK",
})  # fmt: skip
#: Calls that hand on what they are given.
_HANDS_ON = frozenset({"int", "bool", "str", "float", "abs", "min", "max", "get", "getenv", "item"})
_MOST_ROUNDS = 20
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

type_of_function = ast.FunctionDef | ast.AsyncFunctionDef


def is_rank_name(name: str) -> bool:
    """True for a name that reads as the rank of a process, or as a test of it."""
    match = _RANK.fullmatch(name.lower())
    return match is not None and not (match["of"] and _NO_RANK_OF.fullmatch(match["of"]))


def is_rank_decorator(name: str) -> bool:
    """True for a decorator that lets one rank alone run the function: ``rank_zero_only``, ``on_main_process``."""
    return _DECORATOR.fullmatch(name.lower()) is not None


@dataclass
class Scope:
    """The names that a function (or the module) binds, which of them carry a rank, and which were chosen by one."""

    parent: Scope | None = None
    bound: set[str] = field(default_factory=set)
    carrying: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)  # x = open_log() if rank == 0 else None

    def carries(self, name: str) -> bool:
        """True where ``name``, looked up as Python does, was assigned from a rank."""
        return name in self.owner(name).carrying

    def owner(self, name: str) -> Scope:
        """The scope in which ``name`` is bound; the module's where it is bound nowhere."""
        return self if name in self.bound or self.parent is None else self.parent.owner(name)


class RankNames:
    """What one file says of ranks."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope()
        self._scopes: dict[type_of_function, Scope] = {}
        self._attributes: set[str] = set()  # dotted, as written: self.is_first
        self._answering: set[str] = set()  # functions that return what carries a rank
        self._assigned: list[tuple[Scope, ast.expr, ast.expr]] = []
        self._returned: list[tuple[Scope, str, ast.expr]] = []
        self._collect(tree, self.module, "")
        self._settle()

    def scope(self, function: type_of_function | None) -> Scope:
        """The scope of ``function``; that of the module for None."""
        return self.module if function is None else self._scopes[function]

    def differs(self, test: ast.AST, scope: Scope) -> bool:
        """True where ranks may answer ``test`` differently."""
        if self._is_rank(test, scope):
            return True
        if isinstance(test, ast.Compare):
            chosen = isinstance(test.left, ast.Name) and test.left.id in scope.owner(test.left.id).chosen
            asks_the_same = _asks_whether_any(test) and not chosen
            return not asks_the_same and any(self.differs(side, scope) for side in _sides(test))
        if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name | ast.Attribute):
            return False  # self.x of a rank-dependent self.y
        return any(self.differs(child, scope) for child in ast.iter_child_nodes(test))

    def _is_rank(self, node: ast.AST, scope: Scope) -> bool:
        if isinstance(node, ast.Name):
            return is_rank_name(node.id) or scope.carries(node.id)
        if isinstance(node, ast.Attribute):
            return is_rank_name(node.attr) or ast.unparse(node) in self._attributes
        if isinstance(node, ast.Call):
            return _called(node) in self._answering
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in VARIABLES

    def _hands_on(self, value: ast.AST, scope: Scope) -> bool:
        """True where assigning ``value`` to a name makes a rank of it."""
        carried = False
        match value:
            case ast.IfExp():
                carried = self.differs(value.test, scope) or self._any_hands_on((value.body, value.orelse), scope)
            case ast.Compare():
                carried = self.differs(value, scope)
            case ast.BinOp(left=ast.JoinedStr() | ast.Constant(value=str())):
                pass  # a text with the rank in it
            case ast.BoolOp() | ast.UnaryOp() | ast.BinOp():
                carried = self._any_hands_on(ast.iter_child_nodes(value), scope)
            case ast.Subscript(slice=ast.Constant() as key):  # os.environ["RANK"]
                carried = self._is_rank(key, scope)
            case ast.Call():
                name = _called(value)
                carried = is_rank_name(name) or name in self._answering
                carried = carried or (name in _HANDS_ON and self._any_hands_on(value.args, scope))
            case _:
                carried = self._is_rank(value, scope)
        return carried

    def _any_hands_on(self, values: Iterable[ast.AST], scope: Scope) -> bool:
        return any(self._hands_on(value, scope) for value in values)

    def _collect(self, node: ast.AST, scope: Scope, function: str) -> None:
        """Note what is bound, assigned and returned, scope by scope."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                scope.bound.add(child.name)
                inner = Scope(scope, {argument.arg for argument in _arguments(child.args)})
                self._scopes[child] = inner
                self._collect(child, inner, child.name)
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                scope.bound.add(child.id)
            elif isinstance(child, ast.Return) and child.value is not None and function:
                self._returned.append((scope, function, child.value))
            self._assigned.extend((scope, target, value) for target, value in _assignments(child))
            self._collect(child, scope, function)

    def _settle(self) -> None:
        """Follow assignments of assigned names until nothing is added."""
        for _ in range(_MOST_ROUNDS):
            before = self._size()
            for scope, target, value in self._assigned:
                if self._hands_on(value, scope):
                    if isinstance(target, ast.Name):
                        owner = scope.owner(target.id)
                        owner.carrying.add(target.id)
                        if isinstance(value, ast.IfExp) and self.differs(value.test, scope):
                            owner.chosen.add(target.id)
                    elif isinstance(target, ast.Attribute):
                        self._attributes.add(ast.unparse(target))
            self._answering |= {name for scope, name, value in self._returned if self._hands_on(value, scope)}
            if self._size() == before:
                return

    def _size(self) -> int:
        scopes = (self.module, *self._scopes.values())
        return len(self._attributes) + len(self._answering) + sum(len(scope.carrying) for scope in scopes)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None)


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target with its value; ``rank, size = get_rank(), get_world_size()`` pair by pair."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) else None
    if not isinstance(value, ast.expr):
        return
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, ast.Tuple | ast.List) and len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts, strict=True)
        elif isinstance(target, ast.expr):
            yield target, value


def _sides(test: ast.Compare) -> Iterator[ast.expr]:
    """What is compared, without a variable's name that is only looked for (``"RANK" in os.environ``)."""
    if not (isinstance(test.ops[0], ast.In | ast.NotIn) and isinstance(test.left, ast.Constant)):
        yield test.left
    yield from test.comparators


def _asks_whether_any(test: ast.Compare) -> bool:
    """True for ``rank is None``, ``rank != -1``, ``rank >= 0``, which ask whether the job is distributed at all."""
    if len(test.ops) > 1:
        return False
    operator, other = test.ops[0], test.comparators[0]
    if isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.USub) and isinstance(other.operand, ast.Constant):
        return other.operand.value == 1
    if not isinstance(other, ast.Constant):
        return False
    return other.value is None or (other.value == 0 and isinstance(operator, ast.GtE | ast.Lt))
