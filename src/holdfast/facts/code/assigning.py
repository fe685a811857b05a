"""What statements change: variables, attributes, and what these hold."""

from __future__ import annotations

import ast
from typing import Any

from msgspec.structs import replace

from holdfast.facts.code.effects import Note
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.modules import Class, Module, dotted
from holdfast.facts.code.state import State
from holdfast.facts.code.things import Func, Obj, Type
from holdfast.facts.code.values import MISSING, MOST_THINGS, Value, derived, join, lasting, merged, tainted


class Assigning(State):
    """Part of the interpreter: variables and attributes."""

    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        """Give a target its value; under a condition that differs, it differs."""
        match target:
            case ast.Name(id=name):
                if name in frame.globals:
                    self.write_variable(frame.scope.module, name, tainted(value, frame.control))
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
                self.change(frame, owner, held, grows=grows, things=value.things)
            case _:
                pass

    def _assign_attribute(self, frame: Frame, target: ast.Attribute, value: Value) -> None:
        owner = self.evaluate(frame, target.value)
        given = tainted(value, frame.control)
        frame.scope.names[dotted(target)] = given
        for thing in owner.things:
            if isinstance(thing, (Obj, Type)):
                self.write_attribute(thing.cls, target.attr, replace(given, const=value.const, homes=()))
        if target.attr in ("data", "grad"):
            self.change(frame, target.value, given, grows=False)

    def change(self, frame: Frame, owner: ast.expr, value: Value, *, grows: bool, things: tuple[Any, ...] = ()) -> None:
        """Something in what ``owner`` names was changed."""
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        old = self.evaluate(frame, owner)
        control = lasting(frame.control)
        held = (*old.things, *(each for each in things if isinstance(each, (Obj, Func))))
        new = replace(
            old,
            content=merged(old.content, lasting(value.content), control),
            length=merged(old.length, control) if grows else old.length,
            known=old.known and value.known,
            things=tuple(dict.fromkeys(held))[:MOST_THINGS],
            items=None,
            const=MISSING,
            agreed=old.agreed and not frame.control,
        )
        if new != old:
            self.store(frame, owner, new)

    def store(self, frame: Frame, owner: ast.expr, new: Value) -> None:
        """What a name or attribute holds was changed in place."""
        if isinstance(owner, ast.Name):
            if owner.id in frame.scope.names:
                frame.scope.names[owner.id] = new
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
        value = replace(value, content=lasting(value.content), length=lasting(value.length))
        old = cls.attributes.get(name)
        new = value if old is None else join((old, value))
        if new != old:
            cls.attributes[name] = new
            self.changed = True

    def write_variable(self, module: Module, name: str, value: Value) -> None:
        """A variable of a module may hold this too."""
        old = module.variables.get(name)
        new = value if old is None else join((old, value))
        if new != old:
            module.variables[name] = new
            self.changed = True
