"""What a way through the code enters, in its order: collectives, forks, loops, calls and the ways out.

Two ways are held against each other by their :func:`shape`: the same collectives on the same groups, in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

from holdfast.facts.code.values import Sources


class Group(StrEnum):
    """Who takes part: all ranks, some of them, or what is not known (a group that was handed in)."""

    WORLD = "world"
    SUB = "sub-group"
    UNKNOWN = "unknown"


class Place(msgspec.Struct, frozen=True):
    """A line of a file, and the function that it stands in."""

    file: str
    line: int
    function: str = ""


class Op(msgspec.Struct, frozen=True):
    """One collective, or a message between two ranks.

    ``kind``: ``collective``, ``creation`` (of a group), ``forward`` or ``backward`` of a wrapped model, ``sharded``
    (I/O of a sharded model), ``send``, ``recv``. ``weak``: of a model wrapped by DDP, which waits for others only now
    and then. ``peer`` is the other rank of a message as it is written, and "grad" where gradients are reduced.
    ``shifted``: which rank the peer is, differs over ranks.
    ``own``: the group is one that the program made, with these ``members`` where they are known.
    ``chosen``: which group it is, is said.
    """

    name: str
    place: Place
    group: Group = Group.WORLD
    kind: str = "collective"
    weak: bool = False
    peer: str = ""
    shifted: bool = False
    own: bool = False
    members: tuple[int, ...] = ()
    chosen: bool = False


class Note(msgspec.Struct, frozen=True):
    """Something that matters for the order of things and that nobody waits in: a file, a variable, a sampler."""

    name: str
    place: Place
    about: str = ""
    control: Sources = ()


class Exit(msgspec.Struct, frozen=True):
    """The way ends here: ``return``, ``break``, ``continue``, ``raise`` (with the exception's name)."""

    how: str
    place: Place
    what: str = ""


class Fork(msgspec.Struct, frozen=True):
    """A test, and what either answer leads to; of a side that goes on, the first ``…_own`` effects are its own.

    ``picks`` says which ranks pass, where it compares the rank with numbers; ``agreed``: a collective gave the answer.
    """

    place: Place
    text: str
    test: Sources
    known: bool
    yes: tuple[Any, ...]
    no: tuple[Any, ...]
    yes_own: int = -1
    no_own: int = -1
    picks: Any = None
    agreed: bool = False

    def own(self, side: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of a side what stands in the branch itself; the rest follows it."""
        count = self.yes_own if side is self.yes else self.no_own
        return side if count < 0 else side[:count]


class Loop(msgspec.Struct, frozen=True):
    """A loop: why the number of its rounds may differ, or their order; ``known``: nothing else can make it differ.

    ``joined``: it stands in ``with model.join()``, which makes up for what DDP enters, and for nothing else.
    """

    place: Place
    text: str
    count: Sources
    order: Sources
    body: tuple[Any, ...]
    after: tuple[Any, ...] = ()
    known: bool = True
    joined: bool = False


class Try(msgspec.Struct, frozen=True):
    """A guarded block, and each handler: its place, what it catches, and what it does; ``imports``: it does no more."""

    place: Place
    body: tuple[Any, ...]
    handlers: tuple[tuple[Place, str, tuple[Any, ...]], ...]
    last: tuple[Any, ...]
    imports: bool = False


class Body(msgspec.Struct, frozen=True, eq=False):
    """What a function enters, and what is asked of it again and again: it is called from many places.

    ``whole`` and ``world`` are its shapes, ``marks`` the names of its notes and kinds of its operations; ``raises``: an
    exception may leave it.
    """

    way: tuple[Any, ...]
    whole: tuple[Hashable, ...]
    world: tuple[Hashable, ...]
    marks: frozenset[str]
    raises: bool

    @property
    def matters(self) -> bool:
        """Something is entered or noted in it, or an exception leaves it."""
        return bool(self.marks) or self.raises


class Called(msgspec.Struct, frozen=True):
    """A call of a function of the program, with what it enters; ``through``: a wrapper called what it wraps."""

    name: str
    place: Place
    within: Body
    through: bool = False


Effect = Op | Note | Exit | Fork | Loop | Try | Called
Way = tuple[Effect, ...]
#: The note that stands for the block of a context manager.
YIELD = "yield"
#: A program of more is looked at in part; calls of calls multiply.
MOST_EVENTS = 100_000
#: So much of a shape is kept; the rest is a number that tells it from others. Calls of calls double it.
_LONGEST_SHAPE = 1000


def shape(way: Sequence[Effect], *, rank_only: bool = False) -> tuple[Hashable, ...]:
    """The collectives of a way as something that can be compared; ``rank_only`` leaves out those of sub-groups."""
    parts: list[Hashable] = []
    for effect in way:
        match effect:
            case Op(name=name, group=group, kind=kind):
                if kind not in ("send", "recv") and not (rank_only and group is not Group.WORLD):
                    parts.append((name, group.value))
            case Called(within=within):
                parts.extend(within.world if rank_only else within.whole)
            case Fork(yes=yes, no=no):
                parts.extend(_either(shape(yes, rank_only=rank_only), shape(no, rank_only=rank_only)))
            case Loop(body=body, after=after):
                inner = shape(body, rank_only=rank_only)
                if inner:
                    parts.append(("loop", inner))
                parts.extend(shape(after, rank_only=rank_only))
            case Try(body=body, last=last):
                parts.extend(shape(body, rank_only=rank_only))
                parts.extend(shape(last, rank_only=rank_only))
            case Exit():
                break
            case _:
                pass
    return _bounded(tuple(parts))


def _bounded(parts: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    if len(parts) <= _LONGEST_SHAPE:
        return parts
    return (*parts[:_LONGEST_SHAPE], ("more", hash(parts[_LONGEST_SHAPE:])))


def _either(one: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The shape of a fork: one where both sides enter the same."""
    return one if one == other else (("fork", frozenset((one, other))),)


def ends(way: Sequence[Effect]) -> Exit | None:
    """The exit at which every continuation of this way ends; None where it goes on."""
    for effect in way:
        if isinstance(effect, Exit):
            return effect
        if isinstance(effect, Fork):
            one, other = ends(effect.yes), ends(effect.no)
            if one is not None and other is not None:
                return one
    return None


def unfold(way: Sequence[Effect], depth: int = 0) -> Way:
    """Move what follows a fork with an exit into the way of it that stays."""
    for at, effect in enumerate(way):
        if isinstance(effect, Exit):
            return tuple(way[: at + 1])
        if isinstance(effect, Fork) and depth < 12:
            one, other = ends(effect.yes), ends(effect.no)
            rest = tuple(way[at + 1 :])
            if (one is None) != (other is None) and rest:
                yes = effect.yes if one is not None else (*effect.yes, *unfold(rest, depth + 1))
                no = effect.no if other is not None else (*effect.no, *unfold(rest, depth + 1))
                owned = {"yes_own": len(effect.yes)} if one is None else {"no_own": len(effect.no)}
                return (*way[:at], msgspec.structs.replace(effect, yes=yes, no=no, **owned))
    return tuple(way)


def _inner(effect: Effect) -> Way:
    """What is in a fork, a loop or a guarded block, in the order of the text."""
    match effect:
        case Fork(yes=yes, no=no):
            return (*yes, *no)
        case Loop(body=body, after=after):
            return (*body, *after)
        case Try(body=body, handlers=handlers, last=last):
            return (*body, *(each for _, _, handled in handlers for each in handled), *last)
        case _:
            return ()


def operations(way: Sequence[Effect], chain: tuple[Place, ...] = ()) -> Iterator[tuple[Op, tuple[Place, ...]]]:
    """Every operation of a way with the chain of calls that leads there, the outermost first."""
    for effect in way:
        if isinstance(effect, Op):
            yield effect, (*chain, effect.place)
        elif not isinstance(effect, Called):
            yield from operations(_inner(effect), chain)
        elif effect.within.whole:
            yield from operations(effect.within.way, (*chain, effect.place))


def events(way: Sequence[Effect]) -> Iterator[Op | Note]:
    """Operations and notes in the order of the text, a fork's sides one after the other; of a large program not all."""
    return islice(_events(way), MOST_EVENTS)


def _events(way: Sequence[Effect]) -> Iterator[Op | Note]:
    waiting = [iter(way)]  # a generator for each level would hand every event up through all of them
    while waiting:
        for effect in waiting[-1]:
            if isinstance(effect, (Op, Note)):
                yield effect
                continue
            if isinstance(effect, Exit):
                continue
            if not isinstance(effect, Called):
                waiting.append(iter(_inner(effect)))
                break
            if effect.within.marks:
                waiting.append(iter(effect.within.way))
                break
        else:
            waiting.pop()


def body_of(way: Sequence[Effect]) -> Body:
    """The body of a function that has run."""
    unfolded = unfold(way)
    marks: set[str] = set()
    raises = _marked(unfolded, marks)
    return Body(unfolded, shape(unfolded), shape(unfolded, rank_only=True), frozenset(marks), raises)


def _marked(way: Sequence[Effect], marks: set[str]) -> bool:
    """Gather the marks; true where something is raised."""
    raises = False
    for effect in way:
        match effect:
            case Op(kind=kind):
                marks.add(kind)
            case Note(name=name):
                marks.add(name)
            case Called(within=within):
                marks |= within.marks
                raises = raises or within.raises
            case Exit(how=how):
                raises = raises or how == "raise"
            case _:
                raises = _marked(_inner(effect), marks) or raises
    return raises


EMPTY = body_of(())
