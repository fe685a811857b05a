"""Calls: of functions and classes of the program, which are run in turn, and of libraries, of which a table tells."""

from __future__ import annotations

import ast
import re
from typing import Any

from msgspec.structs import replace

from holdfast.facts.code.arguments import Arguments, LibraryCall, given_by
from holdfast.facts.code.effects import Fork, Group, Op, Way, shape
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.functions import Functions, unseen
from holdfast.facts.code.library.calls import library_call
from holdfast.facts.code.library.classes import instance_call, library_base
from holdfast.facts.code.library.methods import method_call
from holdfast.facts.code.memory import SHARDED
from holdfast.facts.code.modules import Class, dotted
from holdfast.facts.code.things import BATCH, LISTED, Applied, Func, Lib, Made, Obj, Partial, Type, outputs
from holdfast.facts.code.values import MOST_THINGS, SAME, UNKNOWN, Given, Sources, Value, join, merged

_LONGEST_TEXT = 80
#: So many arguments are thought up for a lambda that is handed to code that is not seen.
_MOST_PARAMETERS = 8
#: Classes of libraries whose instances can be looped over.
_HELD = re.compile(
    r"dataset|sampler|loader|datapipe|iterator|iterable|sequence|collection|list$|dict$|tuple$", re.IGNORECASE
)
#: Names of what may make a batch of all ranks' out of theirs, or an object of its own.
_TOGETHER = re.compile(r"gather|reduce|sync|broadcast|agree|all_|dist", re.IGNORECASE)


class Calls(Functions):
    """Part of the interpreter: calls."""

    def call_node(self, frame: Frame, node: ast.Call) -> Value:
        """What a call gives, as it is written."""
        called = self.evaluate(frame, node.func)
        return self.call(frame, node, called, self._arguments(frame, node))

    def _arguments(self, frame: Frame, node: ast.Call) -> Arguments:
        given = Arguments()
        for each in node.args:
            value = self.evaluate(frame, each.value if isinstance(each, ast.Starred) else each)
            if not isinstance(each, ast.Starred):
                given.positional.append(value)
                given.nodes.append(each)
            elif value.items is not None:
                given.positional.extend(value.items)
                given.nodes.extend([None] * len(value.items))
            else:
                given.rest = self.element(value)
        for keyword in node.keywords:
            value = self.evaluate(frame, keyword.value)
            if keyword.arg is not None:
                given.named[keyword.arg] = value
                given.named_nodes[keyword.arg] = keyword.value
            elif value.things and isinstance(value.things[0], Given):
                given.named.update(value.things[0].named)
            else:
                given.rest = value if given.rest is None else join((given.rest, value))
        return given

    def call(self, frame: Frame, node: ast.expr, called: Value, given: Arguments) -> Value:
        """Call whatever ``called`` may be; where it may be several things there are several ways."""
        ways: list[tuple[Value, Way]] = []
        for thing in called.things:
            with frame.apart() as inner:
                value = self._call_thing(frame, node, thing, given)
            if value is not None:
                ways.append((value, tuple(inner)))
        if not ways:
            return self._call_unknown(frame, node, called, given)
        # a method of one thing, of which is not known what it is, is no choice by what it holds
        differs = () if all(isinstance(thing, Partial) for thing in called.things) else called.content
        ways = _either(ways)
        for at, (_, way) in enumerate(ways):
            if not way:
                continue
            if len(ways) == 1 or (differs == () and all(other == way for _, other in ways)):
                frame.effects.extend(way)
                break
            text = self.text(node)[:_LONGEST_TEXT]
            frame.note(Fork(frame.place(node), text, differs, not differs and at == 0, way, ()))
        return ways[0][0] if len(ways) == 1 else join([value for value, _ in ways], differs)

    def _call_thing(self, frame: Frame, node: ast.expr, thing: Any, given: Arguments) -> Value | None:
        value: Value | None = None
        match thing:
            case Func():
                value = self.invoke(frame, node, thing, given)
            case Type(cls=cls):
                value = self._construct(frame, node, cls, given)
            case Obj(cls=cls):
                value = self._call_instance(frame, node, cls, given)
            case Applied():
                value = self._call_applied(frame, node, thing, given)
            case Lib(name=name):
                value = library_call(self, LibraryCall(frame, node, name, given))
            case Made(name=name, holds=holds):
                value = instance_call(LibraryCall(frame, node, "__call__", given, name, Value(things=(thing,))))
                if holds is not None and value is not None:
                    value = self._wrapped(frame, node, holds, given, value)
            case Partial(owner=owner, name=name, receiver=receiver):
                kind = owner.name if owner is not None else ""
                value = method_call(self, LibraryCall(frame, node, name, given, kind, receiver))
            case _:
                pass
        return value

    def _call_applied(self, frame: Frame, node: ast.expr, thing: Applied, given: Arguments) -> Value | None:
        """What was given before comes first; where only some ranks enter it, it is a branch."""
        ahead = len(thing.positional)
        whole = replace(
            given,
            positional=[*thing.positional, *given.positional],
            nodes=[*[None] * ahead, *given.nodes],
            named=dict(thing.named) | given.named,
        )
        with frame.apart(thing.guard) as inner:
            value = self._call_thing(frame, node, thing.thing, whole)
        if not thing.guard:
            frame.effects.extend(inner)
            return value
        if inner:
            text = thing.guard[0].text
            frame.note(Fork(frame.place(node), text, thing.guard, known=True, yes=tuple(inner), no=()))
        return None if value is None else join((value, SAME), thing.guard)

    def _call_unknown(self, frame: Frame, node: ast.expr, called: Value, given: Arguments) -> Value:
        """A call of which nothing is known gives what differs where its arguments do, and runs lambdas among them."""
        for value in given.all:
            for thing in value.things:
                if isinstance(thing, Func) and thing.bound is None and isinstance(thing.function.node, ast.Lambda):
                    self.invoke(frame, node, thing, given_by(*[UNKNOWN] * _MOST_PARAMETERS))
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        value = unseen(name, called, *given.all)
        handed = any(BATCH in each.things for each in given.positional) and not _TOGETHER.search(name)
        things = (*outputs(given.positional), *((BATCH,) if handed else ()))
        return replace(value, things=things) if things else value

    def _wrapped(self, frame: Frame, node: ast.expr, holds: Value, given: Arguments, output: Value) -> Value:
        """A wrapped model runs the program's own, and gives what that gives."""
        for cls in (each.cls for each in holds.things if isinstance(each, Obj)):
            method = self.names.method(cls, "forward")
            if method is not None:
                value = self.invoke(frame, node, Func(method, None, Value(things=(Obj(cls),))), given)
                return replace(value, things=(*output.things, *value.things), known=False, homes=())
        return output

    # ---- classes of the program

    def _construct(self, frame: Frame, node: ast.expr, cls: Class, given: Arguments) -> Value:
        base = library_base(self.names, cls)
        made = Value(length=self._sized(cls, given), things=(Obj(cls), Made(base)) if base else (Obj(cls),))
        method = self.names.method(cls, "__init__")
        if method is not None:
            kept, frame.control = frame.control, ()  # who does not come here does not have the instance at all
            self.invoke(frame, node, Func(method, None, made), given)
            if made.length:
                made = replace(made, length=self._length(frame, node, cls, made.length))
            frame.control = kept
            return made
        annotated = [each.target for each in cls.node.body if isinstance(each, ast.AnnAssign)]
        for at, name in enumerate(each.id for each in annotated if isinstance(each, ast.Name)):
            value = given.get(at, name)  # a dataclass
            if value is not None:
                self.write_attribute(cls, name, value)
        after = self.names.method(cls, "__post_init__")
        if after is not None:
            self.invoke(frame, node, Func(after, None, made), Arguments())
        return made

    def _sized(self, cls: Class, given: Arguments) -> Sources:
        """Why instances of a class may be of different lengths: where they have one, what they are made of differs."""
        bases = [each for each in self.names.bases(cls) if isinstance(each, str)]
        if not any(_HELD.search(each) for each in bases) and not self._is_sized(cls):
            return ()
        return merged(*(each.length for each in given.all), *(each.content for each in given.all))

    def _length(self, frame: Frame, node: ast.expr, cls: Class, otherwise: Sources) -> Sources:
        """Why instances are of different lengths, where they say it themselves: by ``__len__``, or by their rounds."""
        counted = self.names.method(cls, "__len__")
        if counted is not None:
            return self.invoke(frame, node, Func(counted, None, Value(things=(Obj(cls),))), Arguments()).content
        with frame.apart():  # what it enters is entered where it is looped over
            given = self._given_in_rounds(frame, node, cls)
        return otherwise if given is None else given.length

    def rounds(self, frame: Frame, node: ast.expr, over: Value) -> Value:
        """What is looped over; of an instance of a class of the program what its ``__iter__`` gives."""
        objects = [] if LISTED in over.things else [thing for thing in over.things if isinstance(thing, Obj)]
        given = {thing: self._given_in_rounds(frame, node, thing.cls) for thing in objects}
        known = {thing: value for thing, value in given.items() if value is not None}
        if not known:
            return over
        value = join(known.values())
        sized = any(self.names.method(thing.cls, "__len__") is not None for thing in known)
        return replace(
            over,
            content=merged(over.content, value.content),
            length=over.length if sized else merged(over.length, value.length),
            known=over.known and value.known,
            things=(*(each for each in over.things if each not in known), *value.things)[:MOST_THINGS],
        )

    def _given_in_rounds(self, frame: Frame, node: ast.expr, cls: Class) -> Value | None:
        """What the ``__iter__`` of a class gives, and how often; None where that is an iterator of its own."""
        method = self.names.method(cls, "__iter__")
        if method is None or not self.relevance.matters(method):
            return None
        value = self.invoke(frame, node, Func(method, None, Value(things=(Obj(cls),))), Arguments())
        return None if Obj(cls) in value.things else value

    def _is_sized(self, cls: Class) -> bool:
        """Its instances have a length, or can be looped over."""
        return any(self.names.method(cls, name) is not None for name in ("__len__", "__iter__", "__getitem__"))

    def _call_instance(self, frame: Frame, node: ast.expr, cls: Class, given: Arguments) -> Value | None:
        method = self.names.method(cls, "__call__") or self.names.method(cls, "forward")
        self.memory.read(cls, SHARDED)
        if cls in self.sharded:
            frame.note(Op("forward", frame.place(node), Group.WORLD, "forward"))
        if method is None:
            return None
        value = self.invoke(frame, node, Func(method, None, Value(things=(Obj(cls),))), given)
        return replace(value, things=(Made("output:fsdp"), *value.things)) if cls in self.sharded else value


def _either(ways: list[tuple[Value, Way]]) -> list[tuple[Value, Way]]:
    """Where some ranks have this hook and the others that one, which enter the same, all enter it."""
    some = [fork for _, way in ways if len(way) == 1 and isinstance(fork := way[0], Fork) and not fork.no and fork.test]
    if len(some) < 2 or len({shape(fork.yes) for fork in some}) > 1 or len({fork.test for fork in some}) > 1:
        return ways
    return [(value, way[0].yes if way and way[0] in some else way) for value, way in ways]
