"""Handles of collectives that run aside: those that nobody waits for, though what they fill is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from holdfast.facts.code import library
from holdfast.facts.code.habits.passages import Passage, Words, argument, inside, passages, says
from holdfast.facts.code.modules import Function, Module
from holdfast.facts.code.partings import Parting

_HOME = "torch.distributed."
_MESSAGES = frozenset({f"{_HOME}isend", f"{_HOME}irecv"})
#: A function that starts more is none that a person wrote.
_MOST = 200
#: After these all that was started has ended.
_ENDING = frozenset({"torch.cuda.synchronize", f"{_HOME}barrier", "torch.cuda.current_stream"})


class Handles:
    """What becomes of handles in a program; ``given`` are functions of it that return one to their caller."""

    def __init__(self, seen: Sequence[Sequence[Passage]]) -> None:
        self.seen = [passage for each in seen for passage in each]
        self.given: dict[int, str] = {}
        for passage in self.seen:
            name = self._returned(passage)
            if name:
                self.given[id(passage.node)] = name

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
        if not isinstance(node, ast.Call):
            return ""
        found = passage.entity(node.func)
        if isinstance(found, Function):
            return self.given.get(id(found.node), "")
        if isinstance(found, str) and (
            found in _MESSAGES
            or (found in library.CALLS and found.startswith(_HOME) and says(node, "async_op", answer=True))
        ):
            return found.removeprefix(_HOME)
        return ""

    def _returned(self, passage: Passage) -> str:
        """The collective whose handle a function returns on all of its ways."""
        made = {
            node.targets[0].id: name
            for node in passage.nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and (name := self._started(passage, node.value))
        }
        returns = [node.value for node in passage.nodes if isinstance(node, ast.Return)]
        names = {
            made.get(value.id, "") if isinstance(value, ast.Name) else self._started(passage, value)
            for value in returns
        }
        return names.pop() if len(names) == 1 and "" not in names else ""

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
