"""What is known of a value over all ranks: whether it, its length or its order may differ, and what it may be."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec

#: Of so many sources of one variation all are the same to the reader.
_MOST_SOURCES = 3
#: So many things that a value may be are remembered; the rest is :data:`OTHER`.
MOST_THINGS = 6


class Kind(StrEnum):
    """Why a value differs over ranks."""

    RANK = "rank"
    LOCAL_RANK = "local rank"
    DATA = "data"
    NAMED = "data, by its name"
    FAULT = "exception"
    TIME = "time"
    CLOCK = "clock"
    FILES = "files"
    HOST = "host or process"
    OWN = "its own of a list"
    ORDER = "order"


class Source(msgspec.Struct, frozen=True):
    """Where a difference over ranks begins: a call, an attribute, an exception."""

    kind: Kind
    file: str
    line: int
    text: str


Sources = tuple[Source, ...]
#: Kinds that are believed where they are seen, and not through attributes, conditions and calls of libraries: nearly
#: all file systems are shared, nearly all times, names of hosts and numbers of processes never compared, and what each
#: rank has in a list of which nothing is known is as a rule alike in all that steers.
_BRIEF = frozenset({Kind.FILES, Kind.TIME, Kind.FAULT, Kind.HOST, Kind.OWN, Kind.NAMED})


_RANKS = frozenset({Kind.RANK, Kind.LOCAL_RANK, Kind.OWN})


def lasting(sources: Sources) -> Sources:
    """The sources that are followed further than to the next test."""
    if not sources or not any(source.kind in _BRIEF for source in sources):
        return sources
    return tuple(source for source in sources if source.kind not in _BRIEF)


class Missing:
    """Stands for "no constant"."""


MISSING: Final = Missing()


class Value(msgspec.Struct, frozen=True):
    """What is known of one value.

    ``content``, ``length`` and ``order`` say why what it holds, how much, or in which order may differ over ranks,
    ``inner`` why the lengths of its elements may, and ``absent`` why it may be None on some; empty means that it is
    the same, where ``known``. ``things`` are what it may be (:mod:`things`, :data:`NONE`, :data:`OTHER`). ``items`` are
    the elements of a short literal, ``const`` is its value where that is plain. ``agreed`` came out of a collective.
    ``homes`` are the attributes (class, name) that hold it.
    """

    content: Sources = ()
    length: Sources = ()
    order: Sources = ()
    inner: Sources = ()
    absent: Sources = ()
    known: bool = True
    things: tuple[Any, ...] = ()
    items: tuple[Value, ...] | None = None
    const: Any = MISSING
    agreed: bool = False
    homes: tuple[tuple[Any, str], ...] = ()


class Given(msgspec.Struct, frozen=True, eq=False):
    """What ``**kwargs`` or a dict of plain keys holds, by name."""

    named: dict[str, Value]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and other.named == self.named

    def __hash__(self) -> int:
        return hash(tuple(self.named))


SAME = Value()
UNKNOWN = Value(known=False)


def picked(sources: Sources) -> Sources:
    """Why an element or a part differs that each rank picks by its own number."""
    return tuple(Source(Kind.OWN, each.file, each.line, each.text) if each.kind in _RANKS else each for each in sources)


def merged(*all_sources: Sources) -> Sources:
    """Sources of several values, each place once."""
    first: Sources = ()
    for each in all_sources:  # nearly always all are empty, or one is not
        if each and each is not first:
            if first:
                return tuple(dict.fromkeys(source for each in all_sources for source in each))[:_MOST_SOURCES]
            first = each
    return first


def constant(value: Any) -> Value:
    """A constant is the same on all ranks."""
    return _NONE if value is None else Value(const=value)


#: Among the things that a value may be: None, and something of which nothing is known.
NONE, OTHER = "none", "other"
_NONE = Value(const=None, things=(NONE,))


def is_none(value: Value) -> bool | None:
    """Whether it is None, where that is known."""
    if value.const is not MISSING:
        return value.const is None
    if value.items is not None:
        return False
    if value.things:
        return False if NONE not in value.things and OTHER not in value.things else None
    return None


def join(values: Iterable[Value], also: Sources = ()) -> Value:
    """What holds for any of these; ``also`` decides which one a rank has."""
    each = list(values)
    if len(each) == 1 and not also:
        return each[0]
    also = lasting(also)
    if not each:
        return Value(content=also)
    first = each[0]
    if len(each) > 1 and first is not UNKNOWN and first is not SAME and all(one is first for one in each):
        return first  # whoever decides has the same: ``tqdm(loader) if main else loader``
    if not also and all(one is first or one == first for one in each):
        return first
    same_const = all(one.const is not MISSING and _alike(one.const, first.const) for one in each)
    if same_const:
        return first
    sizes = {len(one.items) if one.items is not None else None for one in each}
    same_size = len(sizes) == 1 and None not in sizes
    items = None
    if same_size:
        items = tuple(join(column, also) for column in zip(*(one.items or () for one in each), strict=True))
    things = _one_dict(tuple(dict.fromkeys(thing for one in each for thing in one.things)), also)
    if things and not all(one.things or one.const is None for one in each):
        things = (*things[: MOST_THINGS - 1], OTHER)
    sized = any(one.items is not None or one.length or one.inner for one in each)
    return Value(
        content=merged(*(one.content for one in each), also),
        length=merged(*(one.length for one in each), also if sized and not same_size else ()),
        order=merged(*(one.order for one in each)),
        inner=merged(*(one.inner for one in each)),
        absent=merged(*(one.absent for one in each), also),
        known=all(one.known for one in each),
        things=things[:MOST_THINGS],
        items=items,
        agreed=not also and all(one.agreed for one in each),
        homes=tuple(dict.fromkeys(home for one in each for home in one.homes))[:MOST_THINGS],
    )


def _one_dict(things: tuple[Any, ...], also: Sources) -> tuple[Any, ...]:
    """Of several dicts one, with the keys of all."""
    dicts = [thing.named for thing in things if isinstance(thing, Given)]
    if len(dicts) < 2:
        return things
    held: dict[str, Value] = {}
    for name in dict.fromkeys(name for named in dicts for name in named):
        value = join([named[name] for named in dicts if name in named], also)
        if not all(name in named for named in dicts):
            perhaps = (*(value.things or (OTHER,)), NONE)
            value = msgspec.structs.replace(tainted(value, also), absent=lasting(also), things=perhaps)
        held[name] = value
    return (Given(held), *(thing for thing in things if not isinstance(thing, Given)))


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


#: By these each rank picks for itself what it keeps, and may keep nothing.
_PICKING = frozenset({Kind.DATA, Kind.CLOCK})


def asked(value: Value) -> Value:
    """A value as a test: it differs where it is there on some ranks alone, or is empty on some, too."""
    if not (value.absent or value.length):
        return value
    emptied = tuple(source for source in value.length if source.kind in _PICKING)
    return msgspec.structs.replace(value, content=merged(value.content, value.absent, emptied))


def derived(*values: Value) -> Value:
    """The result of an operation on these: it differs where they differ."""
    if not any(value.content or value.length or value.order or value.inner for value in values):
        return SAME if all(value.known for value in values) else UNKNOWN
    return Value(
        content=merged(*(value.content for value in values)),
        length=merged(*(value.length for value in values)),
        order=merged(*(value.order for value in values)),
        inner=merged(*(value.inner for value in values)),
        known=all(value.known for value in values),
    )


def tainted(value: Value, control: Sources) -> Value:
    """A value that was given under a condition that differs."""
    control = lasting(control)
    if not control:
        return value
    return msgspec.structs.replace(
        value,
        content=merged(value.content, control),
        absent=merged(value.absent, control),
        items=tuple(tainted(each, control) for each in value.items) if value.items is not None else None,
        agreed=False,
        const=MISSING,
    )


def truth(value: Value) -> bool | None:
    """Whether it counts as true, where that is known."""
    if value.const is not MISSING:
        try:
            return bool(value.const)
        except Exception:  # noqa: BLE001 - a constant of the program under test
            return None
    if value.items is not None:
        return bool(value.items)
    return None


_NO_KINDS: frozenset[Kind] = frozenset()


def kinds_of(sources: Sources) -> frozenset[Kind]:
    """The kinds of these sources."""
    return frozenset([source.kind for source in sources]) if sources else _NO_KINDS


def by_rank(sources: Sources) -> bool:
    """Nothing but the rank itself makes the difference."""
    return kinds_of(sources) <= _RANKS
