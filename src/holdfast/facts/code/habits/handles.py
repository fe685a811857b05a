"""Handles of collectives that run aside: those that nobody waits for, though what they fill is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from holdfast.facts.code import library
from holdfast.facts.code.habits.callees import callee
from holdfast.facts.code.habits.passages import Passage, Words, argument, inside, passages
from holdfast.facts.code.modules import Function, Module
from holdfast.facts.code.partings import Parting

#: Methods that things of libraries have, too.
_OF_MANY = frozenset(name for methods in library.METHODS.values() for name in methods) | {
    name.rpartition(".")[2] for name in library.CALLS
}
_HOME = "torch.distributed."
_MESSAGES = frozenset({f"{_HOME}isend", f"{_HOME}irecv"})
#: A function that starts more is none that a person wrote.
_MOST = 200
#: After these all that was started has ended.
_ENDING = frozenset({"torch.cuda.synchronize", f"{_HOME}barrier", "torch.cuda.current_stream"})


class Gives(NamedTuple):
    """A function gives its caller the handle of this collective; where ``parameter`` is ``answer``, if it has one."""

    name: str
    parameter: str = ""
    answer: bool = True


class Handles:
    """What becomes of handles in a program; ``given`` are functions of it that return one to their caller."""

    def __init__(self, seen: Sequence[Sequence[Passage]], modules: Collection[Module]) -> None:
        self.seen = [passage for each in seen for passage in each]
        self.given: dict[int, Gives] = {}
        self.methods: dict[str, Function] = {}
        for passage in self.seen:
            gives = self._returned(passage)
            if gives is not None:
                self.given[id(passage.node)] = gives
        if self.given:
            self.methods = dict(self._methods(modules))

    def _methods(self, modules: Collection[Module]) -> Iterator[tuple[str, Function]]:
        """Methods that give a handle, by names that others have only where they do nothing."""
        named: dict[str, list[Function]] = {}
        names = {passage.name for passage in self.seen if id(passage.node) in self.given and passage.owner is not None}
        for module in modules:
            for function in module.functions():
                if function.name in names:
                    named.setdefault(function.name, []).append(function)
        for name, functions in named.items():
            giving = [each for each in functions if id(each.node) in self.given]
            if len(giving) == 1 and all(each is giving[0] or _does_nothing(each.node) for each in functions):
                yield name, giving[0]

    def lost(self, modules: Collection[Module]) -> Iterator[Parting]:
        """Handles that are lost, in the functions that were seen and in those that call one which gives a handle."""
        done = {id(passage.node) for passage in self.seen}
        for passage in self.seen:
            yield from self._lost(passage, modules)
        if not self.given or not self.seen:
            return
        names = {passage.name for passage in self.seen if id(passage.node) in self.given}
        words = Words(tuple(f"{name}(" for name in sorted(names)))
        for module in modules:
            if not words.stand_in(module.text):
                continue
            for passage in passages(module, self.seen[0].names, words):
                if id(passage.node) not in done:
                    yield from self._lost(passage, modules)

    def _started(self, passage: Passage, node: ast.AST | None) -> str:
        """The collective that a call starts, and whose handle it gives; empty for anything else."""
        gives = self._gives(passage, node)
        return gives.name if gives is not None and not gives.parameter else ""

    def _gives(self, passage: Passage, node: ast.AST | None) -> Gives | None:
        """What handle a call gives: always, or where a parameter of the function that it stands in says so."""
        if not isinstance(node, ast.Call):
            return None
        found = passage.entity(node.func)
        if isinstance(found, str) and found:
            if found in _MESSAGES:
                return Gives(found.removeprefix(_HOME))
            if found in library.CALLS and found.startswith(_HOME):
                return _aside(found.removeprefix(_HOME), argument(node, len(node.args), "async_op"), passage.parameters)
            return None
        return self._handed(passage, node, found if isinstance(found, Function) else self._method(passage, node))

    def _handed(self, passage: Passage, call: ast.Call, function: Function | None) -> Gives | None:
        """What a function of the program gives to this call."""
        gives = self.given.get(id(function.node)) if function is not None else None
        if function is None or gives is None or not gives.parameter:
            return gives
        at = function.parameters.index(gives.parameter) - (
            isinstance(call.func, ast.Attribute) and bool(function.owner)
        )
        said = argument(call, at, gives.parameter)
        if said is None and not any(each.arg is None for each in call.keywords):
            said = _default(function, gives.parameter)
        if isinstance(said, ast.Constant):
            return Gives(gives.name) if said.value is gives.answer else None
        return _aside(gives.name, said, passage.parameters) if gives.answer else None

    def _method(self, passage: Passage, call: ast.Call) -> Function | None:
        """The method that is called: of a class that is known, else of the only one that has it and does something."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        named = self.methods.get(name)
        if named is None:
            return None
        known = callee(passage, call)
        if known is not None:
            return known
        gives = self.given[id(named.node)]
        by_name = any(each.arg == gives.parameter for each in call.keywords)  # an option that this method has
        return named if by_name or name not in _OF_MANY else None

    def _returned(self, passage: Passage) -> Gives | None:
        """The collective whose handle a function returns on all of its ways, but for those that give nothing."""
        made = {
            node.targets[0].id: gives
            for node in passage.nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and (gives := self._gives(passage, node.value))
        }
        returned = [node.value for node in passage.nodes if isinstance(node, ast.Return)]
        found = {
            made.get(value.id) if isinstance(value, ast.Name) else self._gives(passage, value)
            for value in (each.body if isinstance(each, ast.IfExp) else each for each in returned)
            if value is not None and not (isinstance(value, ast.Constant) and value.value is None)
        }
        return found.pop() if len(found) == 1 else None

    def _lost(self, passage: Passage, modules: Collection[Module]) -> Iterator[Parting]:
        apart = {
            id(node)
            for block in passage.nodes
            if isinstance(block, ast.With) and "coalescing" in ast.unparse(block.items[0].context_expr)
            for node in inside(*block.body)
        }
        tried = 0
        for node in passage.nodes:
            if (
                tried > _MOST
                or not isinstance(node, (ast.Expr, ast.Assign))
                or not isinstance(call := node.value, ast.Call)
            ):
                continue
            name = self._started(passage, call)
            tried += bool(name)
            kept = (
                bool(name) and isinstance(node, ast.Assign) and not self._forgotten(passage, node.targets[0], modules)
            )
            if name not in ("", "barrier") and not kept and id(node) not in apart and not self._ended(passage, call):
                buffer = self._buffer(passage, call)
                if buffer is not None:
                    place = passage.place(call)
                    yield Parting("handle", place, place, name, (), how=ast.unparse(buffer))

    def _forgotten(self, passage: Passage, target: ast.expr, modules: Collection[Module]) -> bool:
        """Nobody reads the variable or attribute that holds the handle."""
        match target:
            case ast.Name(id=name) if not isinstance(passage.node, ast.Module):
                return not any(
                    isinstance(each, (ast.Global, ast.Nonlocal))
                    or (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load))
                    for each in ast.walk(passage.node)
                )
            case ast.Attribute(attr=name):
                read = re.compile(rf"(?:\.{name}\b(?!\s*=(?!=)))|['\"]{name}['\"]")
                return not any(name in module.text and read.search(module.text) for module in modules)
            case _:
                return False

    @staticmethod
    def _ended(passage: Passage, call: ast.Call) -> bool:
        """Something after it waits for all that was started."""
        return any(
            isinstance(node, ast.Call)
            and node.lineno > call.lineno
            and (passage.called(node) in _ENDING or ast.unparse(node.func).endswith((".synchronize", ".barrier")))
            for node in passage.nodes
        )

    @staticmethod
    def _buffer(passage: Passage, call: ast.Call) -> ast.expr | None:
        """What is filled or sent, where somebody uses it afterwards: the function itself, or who else holds it."""
        buffer = argument(call, 0, "tensor") or next((each.value for each in call.keywords), None)
        roots = {each.id for each in inside(buffer) if isinstance(each, ast.Name)} if buffer is not None else set()
        if isinstance(buffer, ast.Attribute) or roots & set(passage.parameters):
            return buffer
        end = call.end_lineno or call.lineno
        for node in passage.nodes:
            if isinstance(node, ast.Name) and node.id in roots and isinstance(node.ctx, ast.Load) and node.lineno > end:
                return buffer
        return None


def _aside(name: str, said: ast.expr | None, parameters: Sequence[str]) -> Gives | None:
    """What ``async_op=said`` means: True, a parameter, or that a parameter is false."""
    match said:
        case ast.Constant(value=True):
            return Gives(name)
        case ast.Name(id=parameter) if parameter in parameters:
            return Gives(name, parameter)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=parameter)) if parameter in parameters:
            return Gives(name, parameter, answer=False)
        case _:
            return None


def _default(function: Function, parameter: str) -> ast.expr | None:
    """What a parameter is where nobody gives it."""
    defaults = function.node.args.defaults
    at = function.parameters.index(parameter) - len(function.parameters) + len(defaults)
    return defaults[at] if at >= 0 else None


def _does_nothing(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    """A method of a stand-in or of an interface: it says what it is, passes, raises, or returns a constant."""
    return not isinstance(node, ast.Lambda) and all(
        isinstance(each, (ast.Pass, ast.Raise))
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        or (isinstance(each, ast.Return) and (each.value is None or isinstance(each.value, ast.Constant)))
        for each in node.body
    )
