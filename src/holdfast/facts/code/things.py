"""What a value may be: a function with the variables around it, a class, an instance, a library's name or instance."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.facts.code.modules import Class, Function, Module
from holdfast.facts.code.values import Given, Kind, Sources, Value, join, kinds_of, picked


@dataclass(eq=False, slots=True)
class Scope:
    """The variables of a function that runs, or of a module; ``outer`` are those that it can read besides."""

    names: dict[str, Value]
    module: Module
    outer: Scope | None = None


class Func(msgspec.Struct, frozen=True, eq=False):
    """A function of the program; ``bound`` is the instance of a method, ``scope`` what a nested one can read.

    ``guard`` says why only some ranks enter it: a decorator such as ``@rank_zero_only``.
    """

    function: Function
    scope: Scope | None = None
    bound: Value | None = None
    guard: Sources = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Func):
            return False
        same = other.function is self.function and other.scope is self.scope and other.guard == self.guard
        return same and other.bound == self.bound

    def __hash__(self) -> int:
        return hash((id(self.function), id(self.scope)))


class Applied(msgspec.Struct, frozen=True, eq=False):
    """What can be called, with some of its arguments given before (``partial``); ``guard`` as of a function."""

    thing: Any
    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()
    guard: Sources = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Applied) or other.thing != self.thing or other.guard != self.guard:
            return False
        return other.positional == self.positional and other.named == self.named

    def __hash__(self) -> int:
        return hash((type(self.thing), len(self.positional), tuple(name for name, _ in self.named)))


class Type(msgspec.Struct, frozen=True):
    """A class of the program, itself."""

    cls: Class


class Obj(msgspec.Struct, frozen=True):
    """An instance of a class of the program."""

    cls: Class


class Mod(msgspec.Struct, frozen=True):
    """A module of the program."""

    module: Module


class Lib(msgspec.Struct, frozen=True):
    """A name of a library: a module, class, function or constant."""

    name: str


class Made(msgspec.Struct, frozen=True):
    """An instance of a library's class, as :mod:`library` calls it.

    ``holds`` is what a wrapper wraps, and of a loader its sampler. A name with a colon says how: ``wrapped:fsdp``,
    ``output:ddp``.
    """

    name: str
    holds: Value | None = None


class Ranks(msgspec.Struct, frozen=True):
    """A process group that the program made: of all ranks (``world``), or of some, its ``members`` where known."""

    world: bool
    members: tuple[int, ...] = ()


class Picks(msgspec.Struct, frozen=True):
    """The answer to a comparison of the rank with a number, or with several; ``how`` is the operator's name."""

    how: str
    against: Any

    def passes(self, rank: int) -> bool:
        """Whether this rank answers yes."""
        return TESTS[self.how](rank, self.against)


#: Comparisons of the rank.
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
    "GtE": operator.ge, "In": lambda one, many: one in many, "NotIn": lambda one, many: one not in many,
}  # fmt: skip


class Rows(msgspec.Struct, frozen=True, eq=False):
    """What is looped over gives so many values at once: ``zip``, a generator of tuples."""

    items: tuple[Value, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and other.items == self.items

    def __hash__(self) -> int:
        return hash((Rows, len(self.items)))


def row(over: Value) -> Value | None:
    """What one round has over something that gives several values at once."""
    found = [Value(items=thing.items) for thing in over.things if isinstance(thing, Rows)]
    one = join(found) if found else None
    return one if one is not None and one.items else None


class Submitted(msgspec.Struct, frozen=True):
    """What a thread of a pool was given to do: the way that it goes."""

    way: tuple[Any, ...]


class Partial(msgspec.Struct, frozen=True, eq=False):
    """A method of something that is no instance of a class of the program, not called yet.

    ``owner`` is the library's instance that ``receiver`` may be; None where nothing is known of it.
    """

    owner: Made | None
    name: str
    receiver: Value


def given_in(value: Value) -> dict[str, Value] | None:
    """What is known of a dict by its keys."""
    found = [thing.named for thing in value.things if isinstance(thing, Given)]
    return found[0] if len(found) == 1 else None


#: The number that the launcher gives a process: it differs over ranks, and it is there, and 0 or more, on all or none.
LAUNCHED = Made("launched")


#: Beside instances: they are held by a container, which is what has the value.
LISTED = "listed"


def listed(things: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a container holds, marked where an instance might be taken for the container itself."""
    marked = any(isinstance(each, Obj) for each in things) and LISTED not in things
    return (LISTED, *things) if marked else things


#: A tensor of a given size: what is written into it makes it no longer.
ARRAY = Made("array")


#: A text with the rank in it, wherever it is kept.
NAMED = Made("named")
#: A batch of a loader whose sampler gives each rank its own part of the data, or what was taken out of it.
BATCH = Made("batch")
#: How many there are in one, or in a part of it.
COUNT = Made("count")
#: How many more rounds a rank has to make, until it has made as many as were agreed.
PADDING = Made("padding")
#: Of a list the first ones, as many as can be shared out.
TRIMMED = Made("trimmed")
#: Which of its elements have something in common.
MASK = Made("mask")


_NUMBERS = frozenset({Kind.RANK, Kind.LOCAL_RANK, Kind.OWN})


def told(value: Value, things: tuple[Any, ...] = ()) -> Value:
    """A text: one with the rank in it tells ranks apart as a name, and little else; what else it tells is not asked."""
    own = bool(kinds_of(value.content) & _NUMBERS)
    content = tuple(each for each in picked(value.content) if each.kind is not Kind.DATA)
    return msgspec.structs.replace(value, content=content, things=(NAMED,) if own else things[:1])


def bound_to(thing: Any, instance: Value) -> Any:
    """A method as an attribute of an instance; anything else as it is."""
    return msgspec.structs.replace(thing, bound=instance) if isinstance(thing, Func) and thing.bound is None else thing


def is_callable(thing: Any) -> bool:
    """A function or a method of which something is known, or what was made of one."""
    return isinstance(thing, (Func, Applied, Lib, Type)) or (isinstance(thing, Partial) and thing.owner is not None)


def guarded(value: Value, guard: Sources) -> Value:
    """Functions that only some ranks enter from here on: what a ``run_on_main(function)`` gives back."""
    things: list[Any] = []
    for thing in value.things:
        if isinstance(thing, Func):
            things.append(msgspec.structs.replace(thing, guard=guard))
        elif is_callable(thing):
            things.append(Applied(thing, guard=guard))
    return Value(things=tuple(things), known=False)


def outputs(values: Iterable[Value]) -> tuple[Made, ...]:
    """What wrapped models gave, among these: a loss made of it goes backward through them."""
    found = (each for value in values for each in value.things if isinstance(each, Made))
    return tuple(each for each in found if each.name.startswith("output:"))[:1]


def made_names(value: Value | None) -> list[str]:
    """Of which library classes it may be an instance."""
    return [each.name for each in value.things if isinstance(each, Made)] if value is not None else []
