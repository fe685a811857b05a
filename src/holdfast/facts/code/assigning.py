"""What statements change: variables, attributes, and what these hold."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.facts.code.effects import Note
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.memory import ITEMS
from holdfast.facts.code.modules import Class, Function, Module, dotted
from holdfast.facts.code.state import State
from holdfast.facts.code.things import (
    ARRAY,
    BATCH,
    LAUNCHED,
    Applied,
    Func,
    Obj,
    Rows,
    Type,
    given_in,
    is_callable,
    listed,
    outputs,
)
from holdfast.facts.code.values import (
    MISSING,
    MOST_THINGS,
    NONE,
    SAME,
    Given,
    Kind,
    Sources,
    Value,
    by_rank,
    derived,
    join,
    lasting,
    merged,
    tainted,
)

_PLAIN = (ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp)
_NUMBERS = frozenset({"int", "float", "bool", "str", "len", "min", "max", "sum", "abs", "round", "any", "all"})


class Assigning(State):
    """Part of the interpreter: variables and attributes."""

    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        """Give a target its value; under a condition that differs, it differs."""
        match target:
            case ast.Name(id=name):
                if name in frame.globals:
                    self.write_variable(frame.scope.module, name, tainted(value, frame.writing(name)))
                else:
                    frame.scope.names[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                items = value.items if value.items is not None and len(value.items) == len(targets) else None
                for at, each in enumerate(targets):
                    inner = items[at] if items is not None else self.element(value)
                    self.assign(frame, each.value if isinstance(each, ast.Starred) else each, inner)
            case ast.Attribute():
                self._assign_attribute(frame, target, value)
            case ast.Subscript(value=owner, slice=index):
                key = self.evaluate(frame, index)
                if isinstance(key.const, str) and dotted(owner).endswith("environ"):
                    frame.note(Note("variable", frame.place(target), key.const, frame.control))
                held = derived(value, Value(content=key.content))
                grows = not isinstance(key.const, int) and not isinstance(
                    index, (ast.Tuple, ast.Slice)
                )  # a tensor's part
                if grows and self.evaluate(frame, owner).things == (ARRAY,):
                    grows = False
                things = self._put(frame, owner, key, value)
                self.change(frame, target, held, grows=grows, things=things)
            case _:
                pass

    def each(self, frame: Frame, target: ast.expr, node: ast.expr, over: Value) -> None:
        """One round over ``node``: the number that ``enumerate`` gives is the same on all ranks that have the round."""
        value = self.element(over)
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id == "enumerate":
                self.assign(frame, target.elts[0], SAME)
                self.assign(frame, target.elts[1], value)
                return
        self.assign(frame, target, value)

    def _put(self, frame: Frame, owner: ast.expr, key: Value, value: Value) -> tuple[Any, ...]:
        """What is in a container once this is put into it; of a dict of plain keys by its keys."""
        held = self.evaluate(frame, owner)
        named = given_in(held) if isinstance(key.const, str) else None
        if isinstance(key.const, str) and any(is_callable(each) for each in value.things):
            for cls in (each.cls for each in held.things if isinstance(each, Obj)):
                self.write_attribute(cls, ITEMS, Value(things=(Given({key.const: value}),)))
        if named is None:
            return value.things
        return (Given(named | {key.const: tainted(value, frame.control)}), *value.things)

    def _assign_attribute(self, frame: Frame, target: ast.Attribute, value: Value) -> None:
        owner = self.evaluate(frame, target.value)
        control = frame.writing(dotted(target))
        given = tainted(value, control)
        frame.scope.names[dotted(target)] = given
        if control and frame.function is not None and self._is_set_again(frame.function, target):
            return
        if control and not frame.plain:  # elsewhere it matters that it is there, and no more
            held = replace(value, absent=merged(value.absent, lasting(control)), agreed=False, homes=())
        else:
            held = replace(given, const=value.const, homes=())
        for thing in owner.things:
            if isinstance(thing, (Obj, Type)):
                self.write_attribute(thing.cls, target.attr, held)
        if (
            value.content
            and LAUNCHED in value.things
            and not any(isinstance(each, (Obj, Type)) for each in owner.things)
        ):
            key = (dotted(target.value).rpartition(".")[2], target.attr)
            if key[0] and key not in self.loose and self.small and not self.testing:
                self.loose[key] = replace(value, homes=(), const=MISSING)
                self.memory.wrote(*key)
        if target.attr in ("data", "grad"):
            self.change(frame, target.value, given, grows=False)

    def settle(self, frame: Frame, target: ast.Attribute, given: ast.expr) -> None:
        """What ranks agree on is made of what each had in the same attribute: what was in it before is not asked."""
        name = dotted(target)
        if not any(isinstance(each, ast.Attribute) and dotted(each) == name for each in ast.walk(given)):
            return
        for thing in self.evaluate(frame, target.value).things:
            if isinstance(thing, Obj) and target.attr not in thing.cls.settled:
                thing.cls.settled.add(target.attr)
                self.memory.wrote(thing.cls, target.attr)

    def _is_set_again(self, function: Function, target: ast.Attribute) -> bool:
        """All that come past here give the attribute another value, farther down in the function."""
        found = self.set_again.get(id(function.node))
        if found is None:
            found = self.set_again[id(function.node)] = set()
            if not isinstance(function.node, ast.Lambda):
                _set_again(function.node.body, found)
        return id(target) in found

    def change(self, frame: Frame, owner: ast.expr, value: Value, *, grows: bool, things: tuple[Any, ...] = ()) -> None:
        """Something in what ``owner`` names was changed."""
        keys: Sources = ()
        while isinstance(owner, ast.Subscript):
            keys, owner = merged(keys, self._keyed(frame, owner)), owner.value
        old = self.evaluate(frame, owner)
        control = lasting(frame.writing(dotted(owner)))
        if isinstance(owner, ast.Name) and frame.function is not None and owner.id not in frame.function.parameters:
            control = tuple(each for each in control if each not in frame.left)  # all who go on here have it
        if control and by_rank(control) and things and all(isinstance(each, (Obj, Func)) for each in things):
            things = tuple(Applied(each, guard=control) for each in things)  # a hook that some ranks have besides
            control = ()
        held = (
            *(each for each in old.things if not isinstance(each, (Given, Rows))),
            *(each for each in things if isinstance(each, (Obj, Func, Type, Applied, Given))),
            *outputs((Value(things=things),)),
        )
        new = replace(
            old,
            content=merged(old.content, lasting(value.content), control),
            length=merged(old.length, keys, control if grows else ()),
            known=old.known and value.known,
            things=listed(tuple(dict.fromkeys(held)))[:MOST_THINGS],
            items=None,
            const=MISSING,
            agreed=old.agreed and not frame.control,
        )
        if new != old:
            self.store(frame, owner, new)

    def _keyed(self, frame: Frame, node: ast.Subscript) -> Sources:
        """Why not all ranks have the same keys in a dict: a key comes out of a rank's own data."""
        if given_in(self.evaluate(frame, node.value)) is None:
            return ()
        key = self.evaluate(frame, node.slice)
        own = self.source(frame, Kind.DATA, node) if BATCH in key.things else ()
        return merged(tuple(each for each in key.content if each.kind is Kind.DATA), own)

    def store(self, frame: Frame, owner: ast.expr, new: Value) -> None:
        """What a name or attribute holds was changed in place."""
        if isinstance(owner, ast.Name):
            if owner.id in frame.scope.names:
                frame.scope.names[owner.id] = new
                if owner.id not in frame.rebound:  # cfg = dict(cfg): from here on it is a thing of its own
                    frame.mutated[owner.id] = new
            elif owner.id in frame.scope.module.variables:
                self.write_variable(frame.scope.module, owner.id, new)
        elif isinstance(owner, ast.Attribute):
            frame.scope.names[dotted(owner)] = new
            if not new.agreed:
                for thing in self.evaluate(frame, owner.value).things:
                    if isinstance(thing, Obj):
                        self.write_attribute(thing.cls, owner.attr, replace(new, homes=()))

    def write_attribute(self, cls: Class, name: str, value: Value) -> None:
        """An attribute of a class's instances may hold this too."""
        if self.testing and not cls.module.tests:
            return
        value = replace(
            value, content=lasting(value.content), length=lasting(value.length), absent=lasting(value.absent)
        )
        if not value.absent and value.const is not None and NONE not in value.things:
            cls.steady.add(name)
        old = cls.attributes.get(name)
        if name in cls.steady:
            value = replace(value, absent=())
            old = replace(old, absent=()) if old is not None else None
        new = value if old is None else join((old, value))
        if new != old:
            cls.attributes[name] = new
            self.memory.wrote(cls, name)

    def write_variable(self, module: Module, name: str, value: Value) -> None:
        """A variable of a module may hold this too."""
        if self.testing and not module.tests:
            return
        old = module.variables.get(name)
        new = value if old is None else join((old, value))
        if new != old:
            module.variables[name] = new
            self.memory.wrote(module, name)


def _set_again(body: Sequence[ast.stmt], found: set[int]) -> None:
    """Gather the attributes, by their node's identity, that a later statement of a block around them sets again."""
    later: set[str] = set()
    for statement in reversed(body):
        targets = [each for each in getattr(statement, "targets", ()) if isinstance(each, ast.Attribute)]
        leaves = isinstance(statement, ast.If) and any(isinstance(each, ast.Return) for each in ast.walk(statement))
        if isinstance(statement, ast.If) and later and not leaves:
            found.update(
                id(each)
                for each in ast.walk(statement)
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and dotted(each) in later
            )
        later.update(dotted(each) for each in targets)
        for name in ("body", "orelse"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list) and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                _set_again(inner, found)


def missing(test: ast.expr) -> tuple[str, ...]:
    """What a test asks for, and finds to be missing: ``self.group is None``, ``key not in cache``."""
    match test:
        case ast.Compare(left=asked, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return (dotted(asked),)
        case ast.UnaryOp(
            op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))])
        ):
            return (f"{dotted(owner)}.{name}",)
        case ast.Compare(ops=[ast.NotIn()], comparators=[held]):
            if isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute) and held.func.attr == "keys":
                held = held.func.value
            return (f"{dotted(held)}[]",)
        case ast.BoolOp(op=op, values=values):
            found = [missing(each) for each in values]
            return tuple(name for each in found for name in each) if isinstance(op, ast.Or) or all(found) else ()
        case _:
            return ()


def make_up(
    names: dict[str, Value], absent: tuple[str, ...], before: Mapping[str, Value], made: Mapping[str, Value]
) -> None:
    """After ``if store is None: store = Store()`` all have one."""
    for name in absent:
        value, old = made.get(name), before.get(name)
        if value is not None and old is not None and value is not old and names[name].absent:
            names[name] = replace(names[name], absent=(), content=value.content)


def is_memo(node: ast.If, absent: tuple[str, ...]) -> bool:
    """What is missing in a container is put there: ``if key not in groups: groups[key] = dist.new_group(ranks)``."""
    held = {name.removesuffix("[]") for name in absent if name.endswith("[]")}
    return bool(held) and any(
        isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and dotted(each.value) in held
        for statement in node.body
        for each in ast.walk(statement)
    )


def is_kept(node: ast.If) -> bool:
    """What was made before is given again: ``if key in groups: return groups[key]``."""
    last = node.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Subscript):
        return False
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    held, key = ast.unparse(last.value.value), ast.unparse(last.value.slice)
    return any(
        isinstance(each, ast.Compare)
        and isinstance(each.ops[0], ast.In)
        and (ast.unparse(each.left), ast.unparse(each.comparators[0])) == (key, held)
        for each in tests
    )


def is_plain(node: ast.expr) -> bool:
    """A flag, a number, another name: no object that was made just now."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _NUMBERS
    return isinstance(node, _PLAIN)
