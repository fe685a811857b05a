"""Variables after several ways were gone: the sides of a fork, the rounds of a loop, a block and its handlers."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.facts.code.alone import alike
from holdfast.facts.code.modules import dotted
from holdfast.facts.code.things import LAUNCHED
from holdfast.facts.code.values import NONE, Sources, Value, by_rank, join, tainted


def put_back(names: dict[str, Value], new: Mapping[str, Value]) -> None:
    """Variables are these from here on; the scope goes on to be the same one."""
    names.clear()
    names.update(new)


def merge_sides(
    names: dict[str, Value],
    after_yes: Mapping[str, Value],
    differs: Sources,
    *,
    many: bool | None = None,
    perhaps: bool = False,
) -> None:
    """Both sides of a fork go on; a process that is alone takes the second where ``many`` says so, or the first.

    ``perhaps`` it does: what is agreed on the first side need not be on the second.
    """
    for name in after_yes.keys() | names.keys():
        one, other = after_yes.get(name), names.get(name)
        if one is not other:
            both = [each for each in (one, other) if each is not None]
            if many is not None and len(both) == 2:
                both[many] = alike(both[many], both[not many])
            elif perhaps and len(both) == 2 and both[0].agreed:
                both[1] = alike(both[1], both[0])
            names[name] = join(both, differs) if len(both) == 2 else tainted(both[0], differs)


def without_none(names: dict[str, Value], test: ast.expr) -> None:
    """After ``if group is None: return``: that some ranks had None instead of what they share matters no more."""
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and len(test.ops) == 1):
        return
    name, other = dotted(test.left), test.comparators[0]
    value = names.get(name)
    if value is None or not (isinstance(other, ast.Constant) and other.value is None) or NONE not in value.things:
        return
    things = tuple(each for each in value.things if each != NONE)
    if things and by_rank(value.content) and LAUNCHED not in things:
        names[name] = replace(value, content=(), things=things)


def after_itself(names: dict[str, Value], before: Mapping[str, Value], also: Sources = ()) -> None:
    """A loop's body may run for the first time, or after itself."""
    for name, value in before.items():
        if name in names and names[name] is not value:
            names[name] = join((value, names[name]), also)


def after_handler(value: Value, normal: Value | None, fault: Sources) -> Value:
    """A variable that the handler left otherwise than the block does differs with the exception."""
    return value if normal is None or normal == value else tainted(value, fault)
