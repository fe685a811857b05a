"""What names, attributes and elements hold, on all ranks taken together."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import ClassVar

from msgspec.structs import replace

from holdfast.facts.code import library
from holdfast.facts.code.alone import alike
from holdfast.facts.code.arguments import Arguments
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.library.classes import library_base
from holdfast.facts.code.memory import ITEMS
from holdfast.facts.code.modules import Class, Function, Module, canonical
from holdfast.facts.code.relevance import COMMON, ENTERS
from holdfast.facts.code.state import State
from holdfast.facts.code.things import (
    ARRAY,
    BATCH,
    COUNT,
    LAUNCHED,
    LISTED,
    MASK,
    TRIMMED,
    Applied,
    Func,
    Lib,
    Made,
    Mod,
    Obj,
    Partial,
    Scope,
    Type,
    given_in,
    is_callable,
    row,
)
from holdfast.facts.code.values import (
    MISSING,
    OTHER,
    UNKNOWN,
    Kind,
    Source,
    Sources,
    Value,
    constant,
    join,
    merged,
    picked,
)

_SHAPES = frozenset({"shape", "ndim", "numel", "size", "dim", "__len__", "nelement"})
_BUILTINS = frozenset(
    {"slice",
     "len", "range", "sorted", "set", "frozenset", "list", "tuple", "dict", "enumerate", "zip", "iter", "next", "int",
     "float", "bool", "str", "min", "max", "sum", "any", "all", "print", "open", "super", "isinstance", "getattr",
     "setattr", "hasattr", "reversed", "map", "filter", "abs", "round", "type", "id", "repr", "divmod", "input",
     "Exception", "ValueError", "RuntimeError"}
)  # fmt: skip
#: Methods that things of libraries have, too.
_OF_MANY = COMMON | ENTERS | frozenset(name for methods in library.METHODS.values() for name in methods)
#: So many attributes that hold a value are remembered.
_MOST_HOMES = 3
_LONGEST_TEXT = 80
_OWN_NAME = frozenset({"__name__", "__qualname__"})


def last_name(node: ast.expr) -> str:
    """The last part of a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Lookup(State):
    """Part of the interpreter: names, attributes and elements."""

    def named(self, scope: Scope, name: str) -> Value:
        """What a variable holds."""
        at: Scope | None = scope
        while at is not None:
            if name in at.names:
                if at.names is at.module.variables:
                    self.memory.read(at.module, name)
                return at.names[name]
            at = at.outer
        if name == "__name__":
            return constant("__main__")
        module = scope.module
        if module.names.get(name) is not None:
            return self.entity(self.names.member(module, name))
        self.memory.read(module, name)
        if name in module.variables:
            return module.variables[name]
        for starred in module.stars:
            home = self.names.find(starred)
            if isinstance(home, Module) and (name in home.names or name in home.variables):
                return self.named(Scope({}, home), name)
        return Value(things=(Lib(name),)) if name in _BUILTINS else UNKNOWN

    def entity(self, found: Function | Class | Module | str) -> Value:
        """A thing of the program as a value."""
        match found:
            case Function():
                name = canonical(f"{found.module.name}.{found.name}")
                return Value(things=(Lib(name),)) if name in library.CALLS else self.decorated(found, None)
            case Class():
                name = f"{found.module.name}.{found.name}"  # of a library that is linted itself the tables know more
                return Value(things=(Lib(name) if name in library.CLASSES else Type(found),))
            case Module():
                return Value(things=(Mod(found),))
            case str():
                home, _, last = found.rpartition(".")
                owner = self.names.modules.get(home)
                if owner is not None:
                    self.memory.read(owner, last)
                    if last in owner.variables:
                        return owner.variables[last]
                return Value(things=(Lib(found),))

    def variable(self, frame: Frame, name: str, node: ast.expr) -> Value:
        """A variable of the environment: the launcher gives each rank its own, or all the same."""
        kind = library.VARYING_VARIABLES.get(name)
        return Value(self.source(frame, kind, node), things=(LAUNCHED,)) if kind is not None else UNKNOWN

    def source(self, frame: Frame, kind: Kind, node: ast.AST, text: str = "") -> Sources:
        """Here begins a difference over ranks."""
        if frame.alone:
            return ()
        said = text or self.text(node)
        said = said if len(said) < _LONGEST_TEXT else said[: _LONGEST_TEXT - 3] + "..."
        return (Source(kind, frame.file, getattr(node, "lineno", 0), said),)

    def _name(self, frame: Frame, node: ast.Name) -> Value:
        return self.named(frame.scope, node.id)

    # ---- attributes

    def _attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        written = self.dotted(node)
        if written in frame.scope.names:
            return frame.scope.names[written]
        if isinstance(node.value, ast.Call) and last_name(node.value.func) == "super":
            inherited = self._of_super(frame, node.attr)
            if inherited is not None:
                return inherited
        return self.attribute(frame, self.evaluate(frame, node.value), node.attr, node)

    def _of_super(self, frame: Frame, name: str) -> Value | None:
        """A method of the nearest base that has it, of the instance's class where its own class has none."""
        function = frame.function
        if function is None or function.owner is None or not function.parameters:
            return None
        own, instance = function.owner, self.named(frame.scope, function.parameters[0])
        for cls in (own, *(thing.cls for thing in instance.things if isinstance(thing, (Obj, Type)))):
            for base in self.names.bases(cls):
                if isinstance(base, Class) and base is not own and name in base.methods:
                    if base.methods[name].decorated_by("property", "cached_property") or own in self.names.bases(base):
                        continue
                    return self.decorated(base.methods[name], instance)
        known = library_base(self.names, own)
        return Value(things=(Partial(Made(known), name, instance),)) if name in library.METHODS.get(known, {}) else None

    def attribute(self, frame: Frame, base: Value, name: str, node: ast.expr) -> Value:
        """What an attribute of this holds."""
        own = [thing for thing in base.things if isinstance(thing, Obj)]
        found = [each for thing in own if (each := self._of_thing(frame, thing, base, name, node)) is not None]
        found += self._of_some(frame, base, name, node)
        if not found:
            others = [thing for thing in base.things if not isinstance(thing, Obj)]
            found = [each for thing in others if (each := self._of_thing(frame, thing, base, name, node)) is not None]
        if found:
            return join(found)
        enumerated = name == "value" and isinstance(base.const, (str, int)) and not base.things
        if enumerated or name in _SHAPES:
            return base if enumerated else Value(content=base.length, known=base.known)
        kind = library.VARYING_NAMES.get(name)
        if kind is not None and not base.agreed and (not own or self._is_open(own)):
            return Value(self.source(frame, kind, node), things=(LAUNCHED,))
        owner = last_name(node.value) if isinstance(node, ast.Attribute) else ""
        self.memory.read(owner, name)
        if (owner, name) in self.loose and not base.agreed:
            return self.loose[owner, name]
        known = library.NAMED.get(owner)
        method = Partial(Made(known) if known and name in library.METHODS[known] else None, name, base)
        only = self._of_only_class(frame, base, name, node)
        unknown = Value(base.content, base.length, base.order, known=False, agreed=base.agreed, things=(method,))
        return only if only is not None else unknown

    def _of_some(self, frame: Frame, base: Value, name: str, node: ast.expr) -> list[Value]:
        """Methods of objects that only some ranks have: nobody else enters them."""
        found = []
        for thing in base.things:
            if isinstance(thing, Applied) and isinstance(thing.thing, Obj):
                with frame.apart(thing.guard):  # a property of it is passed over
                    value = self._of_thing(frame, thing.thing, base, name, node)
                if value is not None:
                    methods = (Applied(each, guard=thing.guard) for each in value.things if is_callable(each))
                    found.append(replace(value, things=tuple(methods)))
        return found

    def _of_only_class(self, frame: Frame, base: Value, name: str, node: ast.expr) -> Value | None:
        """A method of a parameter of which nothing is known: in a small program that of the one class that has it."""
        receiver = node.value if isinstance(node, ast.Attribute) else None
        function = frame.function
        if not self.small or base.things or base.content or function is None or self.testing:
            return None
        if not isinstance(receiver, ast.Name) or receiver.id not in function.parameters:
            return None
        cls = self.names.only_owner(name) if name not in _OF_MANY else None
        return self._of_instance(frame, cls, name, Value(things=(Obj(cls),)), node) if cls is not None else None

    def _is_open(self, objects: list[Obj]) -> bool:
        """An instance of a class with bases that are not seen: it may have attributes that nobody here wrote."""
        return any(isinstance(base, str) for each in objects for base in self.names.bases(each.cls))

    def _of_thing(self, frame: Frame, thing: object, base: Value, name: str, node: ast.expr) -> Value | None:
        match thing:
            case Mod(module=module):
                self.memory.read(module, name)
                held = module.variables.get(name)
                return held if held is not None else self.entity(self.names.member(module, name))
            case Lib(name=owner):
                return Value(things=(Lib(canonical(f"{owner}.{name}")),))
            case Obj(cls=cls):
                return self._of_instance(frame, cls, name, base, node)
            case Type() | Func():
                return self._of_definition(thing, name)
            case Made():
                return self._of_made(frame, thing, base, name, node)
            case _:
                return None

    def _of_definition(self, thing: Type | Func, name: str) -> Value | None:
        if name in _OWN_NAME:
            return constant(thing.cls.name if isinstance(thing, Type) else thing.function.name)
        return self._of_class(thing.cls, name) if isinstance(thing, Type) else None

    def _of_class(self, cls: Class, name: str) -> Value | None:
        method = self.names.method(cls, name)
        if method is None:
            if name == "apply" and library_base(self.names, cls) == "autograd":
                return Value(things=(Partial(Made("autograd"), name, Value(things=(Type(cls),))),))
            self.memory.read(cls, name)
            return cls.attributes.get(name)
        return self.decorated(method, Value(things=(Type(cls),)) if method.decorated_by("classmethod") else None)

    def _of_made(self, frame: Frame, made: Made, base: Value, name: str, node: ast.expr) -> Value:
        owner, holds = made.name, made.holds
        if made == ARRAY and name in _SHAPES:
            return Value(content=base.length, known=base.known)
        if made == BATCH and name == "shape":
            return Value(content=base.length, known=False, things=(COUNT,))
        if name == "module" and owner.startswith("wrapped:"):
            inner = tuple(each for each in holds.things if each is not OTHER) if holds is not None else ()
            return Value(things=inner or (Made("module"),), known=False)
        kind = library.VARYING_NAMES.get(name)
        knows = owner.startswith(("wrapped:", "accelerate", "lightning", "deepspeed")) or owner in library.METHODS
        if kind is not None and knows:
            return Value(self.source(frame, kind, node), things=(LAUNCHED,))
        return Value(base.content, base.length, known=False, things=(Partial(made, name, base),))

    def _of_instance(self, frame: Frame, cls: Class, name: str, base: Value, node: ast.expr) -> Value | None:
        """An attribute, property or method of an instance."""
        homes = [cls, *(each for each in self.names.bases(cls) if isinstance(each, Class))]
        for each in homes:
            self.memory.read(each, name)
        values = [each.attributes[name] for each in homes if name in each.attributes]
        if values:
            value = join(values)
            if any(name in each.settled for each in homes):
                value = alike(value)
            return replace(value, homes=((cls, name), *value.homes)[:_MOST_HOMES])
        method = self.names.method(cls, name)
        if method is None:
            known = library_base(self.names, cls)
            inherited = name in library.METHODS.get(known, {})
            return Value(things=(Partial(Made(known), name, base),)) if inherited else None
        instance = Value(things=(Obj(cls),), content=base.content)
        if method.decorated_by("property", "cached_property"):
            return self.invoke(frame, node, Func(method, None, instance), Arguments())
        return self.decorated(method, None if method.decorated_by("staticmethod") else instance)

    # ---- elements

    def element(self, over: Value) -> Value:
        """One element of what is looped over."""
        if over.items:
            return join(over.items)
        several = row(over)
        if several is not None:
            return several
        if any(isinstance(thing, Made) and thing.name == "loader" for thing in over.things):
            return Value(known=False, things=(BATCH,) if _shared_out(over) else ())
        things = tuple(each for each in over.things if isinstance(each, (Obj, Func, Type, Applied)) or each == BATCH)
        return Value(over.content, over.inner, known=over.known, homes=over.homes, things=things)

    def _subscript(self, frame: Frame, node: ast.Subscript) -> Value:
        base, index = self.evaluate(frame, node.value), self.evaluate(frame, node.slice)
        at = index.const
        if isinstance(at, str) and any(isinstance(each, Lib) and each.name == "os.environ" for each in base.things):
            return self.variable(frame, at, node)
        if isinstance(at, str) and at in (named := given_in(base) or self._items(base)):
            return named[at]
        if base.items is not None and isinstance(at, int) and -len(base.items) <= at < len(base.items):
            return base.items[at]
        if isinstance(node.slice, ast.Slice):
            return self._part(frame, base, node.slice)
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else None
        rows = base.length if isinstance(first, ast.Slice) and not (first.lower or first.upper) else ()
        inner = join(base.items) if base.items else row(base)
        pieces = Made("pieces") in base.things
        piece = index.content if pieces else ()
        masked = index.content or self.source(frame, Kind.DATA, node) if MASK in index.things else ()
        why = index.content if base.known or pieces or base.content else picked(index.content)
        return Value(
            content=merged(base.content, why),
            length=merged(inner.length if inner is not None else base.inner, piece, masked, rows),
            absent=why,
            known=base.known and index.known,
            things=inner.things if inner is not None else tuple(each for each in base.things if each != LISTED),
            agreed=base.agreed,
            homes=base.homes,
        )

    def _items(self, base: Value) -> dict[str, Value]:
        """What a container of the program's own holds by key, where it does not say itself how: a registry."""
        for cls in (each.cls for each in base.things if isinstance(each, Obj)):
            self.memory.read(cls, ITEMS)
            held = cls.attributes.get(ITEMS)
            if held is not None and self.names.method(cls, "__getitem__") is None:
                return given_in(held) or {}
        return {}

    def _part(self, frame: Frame, base: Value, cut: ast.Slice) -> Value:
        bounds = [self.evaluate(frame, each) for each in (cut.lower, cut.upper, cut.step) if each is not None]
        varying = [each.content for each in bounds if each.content]
        moved = varying[0] if len(varying) == 1 else ()  # two that differ: a piece of the same length for each rank
        if cut.lower is None and cut.step is None and not moved:
            trimmed = (TRIMMED,) if cut.upper is not None and bounds[0].const is MISSING else ()
            return Value(base.content, known=False, agreed=base.agreed, things=trimmed)  # of at most so many
        if TRIMMED in base.things and cut.step is not None:  # as many for each
            return Value(merged(base.content, moved), base.length, known=False)
        return Value(merged(base.content, moved), merged(base.length, moved), known=base.known)

    by_node: ClassVar[dict[type[ast.expr], Callable[..., Value]]] = {
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Subscript: _subscript,
    }


def _shared_out(over: Value) -> bool:
    """A sampler gives each rank its own part of what is loaded."""
    loaders = [each.holds for each in over.things if isinstance(each, Made) and each.name == "loader"]
    samplers = [each for holds in loaders if holds is not None for each in holds.things if isinstance(each, Made)]
    return any(each.name.startswith("sampler") and each.holds is None for each in samplers)
