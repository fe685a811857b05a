"""Which function of the program a call means, as it is written, and who calls a function, over all of its files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from holdfast.facts.code.habits.passages import LOOPS, Passage, Words, inside, passages
from holdfast.facts.code.modules import Class, Function, last_name

#: So many functions in which a name is called are looked at.
_MOST = 100


def callee(passage: Passage, call: ast.Call) -> Function | None:
    """The function or method that is called; None where that is a library's, or not plain."""
    found = passage.entity(call.func)
    if isinstance(found, Function):
        return found
    if isinstance(call.func, ast.Attribute):
        made = _made(passage, call.func.value)
        if made is not None:
            return passage.names.method(made, call.func.attr)
    return None


def passage_of(function: Function, like: Passage) -> Passage | None:
    """The function as a passage; None for a lambda."""
    if isinstance(function.node, ast.Lambda):
        return None
    owner = function.owner.node if function.owner is not None else None
    return Passage(function.module, like.names, function.node, owner, inside(*function.node.body))


def _made(passage: Passage, receiver: ast.expr) -> Class | None:
    """The class of the program that made it: ``Meter()`` itself, a variable, an attribute that the constructor sets."""
    if isinstance(receiver, ast.Call):
        made = passage.entity(receiver.func)
        return made if isinstance(made, Class) else None
    where = passage
    if isinstance(receiver, ast.Attribute):
        own = passage.module.names.get(passage.owner.name) if passage.owner is not None else None
        first = passage.names.method(own, "__init__") if isinstance(own, Class) else None
        builder = passage_of(first, passage) if first is not None else None
        if builder is None:
            return None
        where = builder
    name = ast.unparse(receiver) if isinstance(receiver, (ast.Name, ast.Attribute)) else ""
    classes = {
        where.entity(node.value.func) if isinstance(node.value, ast.Call) else ""
        for node in where.nodes
        if isinstance(node, ast.Assign) and any(ast.unparse(each) == name for each in node.targets)
    }
    found = classes.pop() if len(classes) == 1 else None
    return found if isinstance(found, Class) else None


def callers(passage: Passage) -> Iterator[tuple[Passage, ast.Call]]:
    """The calls of a function or method in its program, by whoever has the receiver from elsewhere than a loop."""
    words = Words((f"{passage.name}(",))
    if passage.name.startswith("__") or isinstance(passage.node, ast.Module):
        return
    seen = (
        each
        for module in passage.names.modules.values()
        if words.stand_in(module.text)
        for each in passages(module, passage.names, words)
    )
    for each in islice(seen, _MOST):
        for node in each.nodes:
            if (
                isinstance(node, ast.Call)
                and last_name(node.func) == passage.name
                and not _made_in_loop(each, node.func)
            ):
                found = callee(each, node)
                if found is not None and found.node is passage.node:
                    yield each, node


def _made_in_loop(passage: Passage, called: ast.expr) -> bool:
    """The receiver is made where it is called, or in a loop: each time another."""
    receiver = called.value if isinstance(called, ast.Attribute) else None
    if isinstance(receiver, ast.Call):
        return True
    name = receiver.id if isinstance(receiver, ast.Name) else ""
    return bool(name) and any(
        isinstance(node, ast.Assign) and any(last_name(each) == name for each in node.targets)
        for loop in passage.nodes
        if isinstance(loop, LOOPS)
        for node in inside(*loop.body)
    )
