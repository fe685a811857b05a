"""Find running totals that are summed over the ranks in each round of the loop that counts them.

What earlier rounds counted is multiplied by the number of ranks with each sum.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.averages import WORLD_SIZE_NAME
from holdfast.lint.patterns.call_graph import resolve_callee
from holdfast.lint.patterns.scopes import (
    LOOPS,
    CodeScope,
    Words,
    argument,
    iter_scopes,
    walk,
    walk_nodes,
)
from holdfast.lint.sources.modules import Function, Module, SymbolTable, dotted_name, last_name

_ALL_REDUCE = "torch.distributed.all_reduce"
#: Maximum number of calls between a total and the all_reduce.
_MAX_DEPTH = 3
_COUNTS = re.compile(r"update|add|eval|accumulate|collect|record|count|measure", re.IGNORECASE)
_RESETS = re.compile(r"^(?:reset\w*|zero_|clear|fill_|zero)$")
_LEAVES = (ast.Break, ast.Return, ast.Raise)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over the ranks of what ``roots`` hold; ``in_place``: of these variables themselves."""

    call: ast.Call
    roots: frozenset[str]
    in_place: frozenset[str]


class _CallWords(Words):
    """Words with which a call begins, and not the end of another name: ``end(`` in ``append(``."""

    def occur_in(self, text: str) -> bool:
        """Return True if one of the functions is called."""
        return Words.occur_in(self, text) and _call_pattern(self.parts).search(text) is not None


@lru_cache(maxsize=16)
def _call_pattern(parts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, parts))})")


def find_running_sums(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield the sums of a total in the loop that counts it, through functions and methods too."""
    own = [module for module in modules if not module.is_test]
    if not any("all_reduce(" in module.text for module in own):
        return
    functions = _SummingFunctions(own, names)
    for scope in functions.scopes(functions.words):
        for loop in scope.nodes:
            if isinstance(loop, LOOPS):
                yield from _sums_in_loop(scope, functions, loop)


class _SummingFunctions:
    """The functions of a program that sum a parameter, or an attribute of their object."""

    def __init__(self, modules: Sequence[Module], names: SymbolTable) -> None:
        self._modules = modules
        self._names = names
        self._summed: dict[ast.AST, _Sum] = {}
        found, known = {"all_reduce"}, {"all_reduce"}
        for _ in range(_MAX_DEPTH):
            found = set(self._find(_CallWords(tuple(f"{name}(" for name in sorted(found))))) - known
            if not found:
                break
            known |= found
        self.words = _CallWords(tuple(f"{name}(" for name in sorted(known)))

    def scopes(self, words: Words) -> Iterator[CodeScope]:
        """Yield module level and all functions that contain one of the words."""
        for module in self._modules:
            if words.occur_in(module.text):
                yield from iter_scopes(module, self._names, words)

    def _find(self, words: Words) -> Iterator[str]:
        for scope in self.scopes(words):
            if isinstance(scope.node, ast.Module) or scope.node in self._summed:
                continue
            if any(_divides_by_ranks(node) for node in scope.node.body):
                continue  # the mean of a mean over the ranks stays the same
            sums = list(self.sums(scope, scope.nodes))
            if not sums:
                continue
            origins = _origins(scope.nodes, frozenset().union(*(each.roots for each in sums)))
            held = {
                name for name in origins if name in scope.parameters or name.startswith("self.")
            }
            stored = {name for name in held if _is_stored(scope, name, sums)}
            stored |= frozenset().union(*(each.in_place for each in sums)) & held
            stored -= _rebound(scope)
            if held:
                self._summed[scope.node] = _Sum(sums[0].call, frozenset(held), frozenset(stored))
                yield scope.name

    def sums(self, scope: CodeScope, nodes: Iterable[ast.AST]) -> Iterator[_Sum]:
        """Yield the calls among the nodes that sum something over the ranks."""
        for call in nodes:
            if not isinstance(call, ast.Call):
                continue
            if scope.library_call_name(call) == _ALL_REDUCE:
                tensor, operation = argument(call, 0, "tensor"), argument(call, 1, "op")
                sums = operation is None or last_name(operation) == "SUM"
                if tensor is not None and sums:
                    yield _Sum(call, _names_in(tensor), frozenset({_place(tensor)}) - {""})
                continue
            function = self.called(scope, call)
            summed = self._summed.get(function.node) if function is not None else None
            if function is not None and summed is not None:
                yield self._passed(call, function, summed)

    def called(self, scope: CodeScope, call: ast.Call) -> Function | None:
        """Return the function or method of the program that is called."""
        function = resolve_callee(scope, call)
        if function is None and isinstance(call.func, ast.Attribute):
            owner = self._names.only_owner(call.func.attr)
            if owner is not None and not isinstance(call.func.value, ast.Call):
                function = self._names.find_method(owner, call.func.attr)
        return function

    @staticmethod
    def _passed(call: ast.Call, function: Function, summed: _Sum) -> _Sum:
        """Return a sum by a function, of what the call passes and of the receiver's attributes."""
        roots: set[str] = set()
        places: set[str] = set()
        called = call.func if function.owner is not None else None
        bound = isinstance(called, ast.Attribute)
        for name in summed.roots:
            if name.startswith("self.") and isinstance(called, ast.Attribute):
                receiver = dotted_name(called.value)
                attribute = name if receiver == "self" else f"{receiver}{name.removeprefix('self')}"
                roots.add(attribute)
                places |= {attribute} if name in summed.in_place and receiver else set()
            elif name in function.parameters:
                passed = argument(call, function.parameters.index(name) - bound, name)
                if passed is not None:
                    roots |= _names_in(passed)
                    places |= {_place(passed)} if name in summed.in_place else set()
        return _Sum(call, frozenset(roots), frozenset(places - {""}))


def _sums_in_loop(
    scope: CodeScope, functions: _SummingFunctions, loop: ast.stmt
) -> Iterator[Divergence]:
    body = getattr(loop, "body", [])
    nodes = walk_nodes(*body)
    last = {id(node) for statement in nodes for node in _left_after(statement)}
    for each in functions.sums(scope, nodes):
        if id(each.call) in last:
            continue
        stored = {
            _place(target)
            for node in nodes
            if isinstance(node, ast.Assign) and each.call in walk(node.value)
            for target in node.targets
        }
        for name in sorted(each.in_place | (stored & each.roots)):
            if _is_kept(nodes, name) and _is_counted(scope, functions, nodes, name, each.call):
                at = scope.location(each.call)
                message = (
                    f"`{name}` is summed over the ranks in each round of the loop at line "
                    f"{loop.lineno}, which goes on counting in it: what earlier rounds counted is "
                    "multiplied by the number of ranks each time; sum a copy, or once after the "
                    "loop"
                )
                yield Divergence("habit-result", at, at, "", (), detail=message, by_name=True)
                break


def _is_kept(nodes: Sequence[ast.AST], name: str) -> bool:
    """Return True if a loop neither sets a total anew nor divides it by the number of ranks."""
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                if any(
                    name == text or name.startswith(f"{text}.")
                    for text in map(dotted_name, _flat(targets))
                    if text
                ) and not {name, name.partition(".")[0]} & _names_in(value):
                    return False
            case ast.Call(func=ast.Attribute(value=held, attr=method)) if _RESETS.match(method):
                if name == (text := dotted_name(held)) or name.startswith(f"{text}."):
                    return False
            case _ if _divides_by_ranks(node) and name in _names_in(node):
                return False
            case _:
                pass
    return True


def _is_counted(
    scope: CodeScope,
    functions: _SummingFunctions,
    nodes: Sequence[ast.AST],
    name: str,
    sums: ast.Call,
) -> bool:
    """Return True if a loop adds to a total, itself or in a function that it calls."""
    if any(_adds_to(node, name) for node in nodes):
        return True
    owner, _, attribute = name.rpartition(".")
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = functions.called(scope, node)
        inner = walk_nodes(*_body_of(function))
        if owner and isinstance(node.func, ast.Attribute) and dotted_name(node.func.value) == owner:
            if node is not sums and any(_adds_to(each, f"self.{attribute}") for each in inner):
                return True
        elif name in map(_place, node.args):
            added = function is not None and _adds_to_parameter(function, inner, node, name)
            counts = _COUNTS.search(last_name(node.func)) is not None and _is_returned_to(
                nodes, node, name
            )
            if (node is not sums and (added or counts)) or (
                node is sums and _passes_on(function, inner)
            ):
                return True
    return False


def _adds_to_parameter(
    function: Function, inner: Sequence[ast.AST], call: ast.Call, name: str
) -> bool:
    """Return True if a function adds to the parameter for which a call passes a total."""
    bound = function.owner is not None and isinstance(call.func, ast.Attribute)
    names = [
        parameter
        for at, parameter in enumerate(function.parameters[bound:])
        if (passed := argument(call, at, parameter)) is not None and _place(passed) == name
    ]
    return any(_adds_to(node, parameter) for node in inner for parameter in names)


def _is_returned_to(nodes: Sequence[ast.AST], call: ast.Call, name: str) -> bool:
    """Return True for ``totals = scores.update(totals, batch)``."""
    return any(
        isinstance(node, ast.Assign)
        and call in walk(node.value)
        and name in map(_place, _flat(node.targets))
        for node in nodes
    )


def _body_of(function: Function | None) -> Sequence[ast.stmt]:
    if function is None or isinstance(function.node, ast.Lambda):
        return ()
    return function.node.body


def _passes_on(function: Function | None, inner: Sequence[ast.AST]) -> bool:
    """Return True if a function that sums a parameter adds to it before, or lets another add."""
    names = set(function.parameters) - {"self"} if function is not None else set()
    return any(
        any(_adds_to(node, name) for name in names)
        or (
            isinstance(node, ast.Call)
            and _COUNTS.search(last_name(node.func)) is not None
            and any(names & _names_in(arg) for arg in node.args)
        )
        for node in inner
    )


def _adds_to(node: ast.AST, name: str) -> bool:
    """Return True for ``total += value``, ``total[key] = total.get(key, 0) + value``."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add()):
            return _place(target) == name
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add()) as value):
            return _place(target) == name and name in _names_in(value)
        case ast.Call(func=ast.Attribute(value=target, attr="add_")):
            return _place(target) == name
        case _:
            return False


def _rebound(scope: CodeScope) -> set[str]:
    """Return the parameters that a function sets anew, so that the caller keeps what it passed."""
    targets = (
        target
        for node in scope.nodes
        if isinstance(node, ast.Assign)
        for target in _flat(node.targets)
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_stored(scope: CodeScope, name: str, sums: Sequence[_Sum]) -> bool:
    """Return True if a function stores a sum in the attribute or parameter that it comes from."""
    calls = {each.call for each in sums}
    summed = {place for each in sums for place in each.in_place}
    for node in scope.nodes:
        if not isinstance(node, ast.Assign) or name not in map(_place, _flat(node.targets)):
            continue
        if calls & set(walk(node.value)) or summed & _origins(scope.nodes, _names_in(node.value)):
            return True
    return False


def _origins(nodes: Iterable[ast.AST], names: Collection[str]) -> set[str]:
    """Return the names from which the values of these names are made, and these names."""
    found = set(names)
    pairs = [
        (set(map(_place, _flat(targets))), _names_in(value))
        for node in nodes
        for targets, value in _bindings(node)
    ]
    for _ in range(_MAX_DEPTH):
        more = {name for targets, used in pairs if targets & found for name in used}
        if more <= found:
            break
        found |= more
    return found


def _bindings(node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield targets, value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield [target], value
        case _:
            pass


def _flat(targets: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from _flat(target.elts)
        else:
            yield target


def _place(node: ast.expr) -> str:
    """Return the variable or attribute in which an element is: ``totals[key]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return dotted_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _names_in(node: ast.AST) -> frozenset[str]:
    """Return the variables and attributes in an expression, those of called functions apart."""
    called = {id(inner.func) for inner in walk(node) if isinstance(inner, ast.Call)}
    found = set()
    for inner in walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            found.add(dotted_name(inner.func.value))
        elif isinstance(inner, (ast.Name, ast.Attribute)) and id(inner) not in called:
            found.add(dotted_name(inner))
    return frozenset(found - {"", "self"})


def _divides_by_ranks(node: ast.AST) -> bool:
    """Return True for a statement that divides by the number of ranks, whatever the tests."""
    match node:
        case ast.AugAssign(op=ast.Div(), value=value) | ast.BinOp(op=ast.Div(), right=value):
            return WORLD_SIZE_NAME.search(ast.unparse(value)) is not None
        case ast.Assign(value=value) | ast.Return(value=ast.expr() as value):
            return any(_divides_by_ranks(inner) for inner in walk(value) if inner is not value) or (
                isinstance(value, ast.BinOp) and _divides_by_ranks(value)
            )
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="div_"), args=[value])):
            return WORLD_SIZE_NAME.search(ast.unparse(value)) is not None
        case _:
            return False


def _left_after(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a block after which the loop ends."""
    if isinstance(statement, ast.If):
        for block in (statement.body, statement.orelse):
            if block and isinstance(block[-1], _LEAVES):
                yield from walk_nodes(*block)
