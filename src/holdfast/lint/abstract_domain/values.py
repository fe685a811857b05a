"""Abstract values: why content, length or order may differ between ranks, and possible objects."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

_Object = TypeVar("_Object")
#: Maximum number of sources per taint; more add nothing for the reader.
_MAX_SOURCES = 3
#: Maximum number of objects per value; :data:`UNKNOWN_OBJECT` replaces the rest.
MAX_OBJECTS = 6


class TaintKind(StrEnum):
    """Why a value differs between ranks."""

    RANK = "rank"
    LOCAL_RANK = "local rank"
    DATA = "data"
    NAMED = "data, judged by name"
    FAULT = "exception"
    TIME = "time"
    CLOCK = "clock"
    FILES = "files"
    HOST = "host or process"
    OWN = "element selected by rank"
    ORDER = "order"


class TaintSource(msgspec.Struct, frozen=True):
    """Where a difference between ranks originates: a call, an attribute, an exception.

    ``by_name``: nothing but a name says so, such as that of a parameter that no caller is seen for.
    ``weak``: it shows no difference alone: in a large program, an attribute, which all instances of
    a class share here, or a file, which all ranks usually see.
    """

    kind: TaintKind
    file: str
    line: int
    text: str
    by_name: bool = False
    weak: bool = False


Taint = tuple[TaintSource, ...]
#: Kinds that do not propagate through attributes, conditions and library calls: nearly all file
#: systems are shared; times, host names and process ids are rarely compared; and elements selected
#: by rank are usually equal in what controls the flow.
_TRANSIENT = frozenset({
    TaintKind.FILES, TaintKind.TIME, TaintKind.FAULT, TaintKind.HOST, TaintKind.OWN,
    TaintKind.NAMED,
})  # fmt: skip


#: What a process takes from its own clock, host or number.
PROCESS_KINDS = frozenset({TaintKind.TIME, TaintKind.HOST})
#: Taint by a rank's number; and by an element that it selects.
RANK_KINDS = frozenset({TaintKind.RANK, TaintKind.LOCAL_RANK})
RANK_OR_SELECTED = RANK_KINDS | {TaintKind.OWN}


def persistent_taint(sources: Taint) -> Taint:
    """Return the sources that propagate beyond the next test."""
    if not sources or not any(source.kind in _TRANSIENT for source in sources):
        return sources
    return without_kinds(sources, _TRANSIENT)


def weak_taint(sources: Taint) -> Taint:
    """Return the sources that an attribute of a large program keeps."""
    return _weak(persistent_taint(sources))


def set_order(order: Taint) -> Taint:
    """Return the sources of an order that are sets or listings, and not draws of a generator.

    Data are usually shuffled, and loops over them need not agree.
    """
    return tuple(source for source in order if source.kind is TaintKind.ORDER)


class NoConstant:
    """Type of :data:`NO_CONSTANT`."""


NO_CONSTANT: Final = NoConstant()


#: Dicts nested more deeply have unknown entries: a loop may put a dict into itself.
_MAX_NESTING = 5
#: Shares between such bounds differ in length: by rounding where the data end, or always.
ROUNDED_UP, CLAMPED = 1, 2


class Value(msgspec.Struct, frozen=True):
    """The abstract value of an expression on all ranks.

    content, length, order: taint of the content, the length and the order; empty means uniform,
    if ``known``
    element_length: taint of the lengths of the elements
    absent: taint of being None
    objects: what it may be (:mod:`~holdfast.lint.abstract_state.abstract_objects`,
    :data:`NONE_OBJECT`, :data:`UNKNOWN_OBJECT`)
    items: the elements of a short literal
    const: the value of a constant
    agreed: a collective made it equal on all ranks
    stored_in: the attributes (class, name) that hold it
    ragged: :data:`ROUNDED_UP` or :data:`CLAMPED` for the bound of a share
    """

    content: Taint = ()
    length: Taint = ()
    order: Taint = ()
    element_length: Taint = ()
    absent: Taint = ()
    known: bool = True
    objects: tuple[Any, ...] = ()
    items: tuple[Value, ...] | None = None
    const: Any = NO_CONSTANT
    agreed: bool = False
    stored_in: tuple[tuple[Any, str], ...] = ()
    ragged: int = 0

    def objects_of(self, kind: type[_Object] | tuple[type[_Object], ...]) -> list[_Object]:
        """Return the objects of a class, or of one of several."""
        return [obj for obj in self.objects if isinstance(obj, kind)]


class DictEntries(msgspec.Struct, frozen=True, eq=False):
    """The entries of ``**kwargs`` or of a dict with constant keys, made by :func:`dict_of`.

    ``depth`` dicts are nested in each other; ``signature`` identifies the entries in a context,
    once it is known.
    """

    entries: dict[str, Value]
    depth: int = 1
    signature: Hashable = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DictEntries) and other.entries == self.entries

    def __hash__(self) -> int:
        return hash(tuple(self.entries))


class OpenDict(msgspec.Struct, frozen=True, eq=False):
    """A dict or configuration of which some entries are known: ``config["rank"] = rank``.

    ``rest`` is the container as it was before them: what holds of the other entries. Made by
    :func:`open_dict_of`; ``depth`` and ``signature`` as in :class:`DictEntries`.
    """

    entries: dict[str, Value]
    rest: Value
    depth: int = 1
    signature: Hashable = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OpenDict)
            and other.entries == self.entries
            and other.rest == self.rest
        )

    def __hash__(self) -> int:
        return hash((OpenDict, *self.entries))


#: Dicts with known entries.
DICTS = (DictEntries, OpenDict)


class NumberTypes(msgspec.Struct, frozen=True):
    """A number of another type on some ranks: ``1.0 if rank == 0 else 0``."""

    sources: Taint


_NUMBERS = frozenset({bool, int, float})


class SitedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the program by its allocation site; 0: anywhere."""

    site: int = 0


class HeapFacts(msgspec.Struct, frozen=True, eq=False):
    """What is known of attributes and module variables at one point: (owner, name) → value.

    ``signature`` identifies them in a context, once it is known.
    """

    facts: dict[tuple[Any, str], Value]
    signature: Hashable = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeapFacts) and other.facts == self.facts

    def __hash__(self) -> int:
        return hash(tuple(name for _, name in self.facts))


UNIFORM = Value()
UNKNOWN = Value(known=False)
#: The pseudo-variable of each scope that holds its :class:`HeapFacts`, and its first value.
HEAP = "<heap>"
NO_FACTS = Value(objects=(HeapFacts({}),))


def as_selection(sources: Taint) -> Taint:
    """Return the taint of an element or slice that each rank selects by its own rank."""
    return tuple(
        replace(source, kind=TaintKind.OWN) if source.kind in RANK_OR_SELECTED else source
        for source in sources
    )


def merge_taint(*taints: Taint) -> Taint:
    """Merge taints, without duplicates."""
    first: Taint = ()
    for taint in taints:  # nearly always all are empty, or only one is not
        if taint and taint is not first:
            if first:
                return tuple(dict.fromkeys(source for taint in taints for source in taint))[
                    :_MAX_SOURCES
                ]
            first = taint
    return first


def merge_content(values: Iterable[Value]) -> Taint:
    """Return the merged taint of the contents."""
    return merge_taint(*[value.content for value in values])


def merge_length(values: Iterable[Value]) -> Taint:
    """Return the merged taint of the lengths."""
    return merge_taint(*[value.length for value in values])


def without_kinds(sources: Taint, kinds: Collection[TaintKind]) -> Taint:
    """Return the sources of other kinds."""
    return tuple(source for source in sources if source.kind not in kinds)


def constant_value(value: Any) -> Value:
    """Return the value of a constant."""
    return _NONE_VALUE if value is None else Value(const=value)


#: Pseudo-objects: None, and an unknown object.
NONE_OBJECT, UNKNOWN_OBJECT = "none", "other"
_NONE_VALUE = Value(const=None, objects=(NONE_OBJECT,))


def join_values(values: Iterable[Value], selector: Taint = ()) -> Value:
    """Return the join of the values; ``selector`` is the taint of which one a rank has."""
    candidates = list(values)
    if len(candidates) == 1 and not selector:
        return candidates[0]
    if not candidates:
        return Value(content=persistent_taint(selector))
    first = candidates[0]
    others = [value for value in candidates if value is not first]
    agreed = first.agreed and all(value.agreed for value in others)
    # after a broadcast, the root and the other ranks have the same
    selector = () if agreed else persistent_taint(selector)
    # all sides have the same object: ``tqdm(loader) if main else loader``
    if not others and len(candidates) > 1 and first is not UNKNOWN and first is not UNIFORM:
        return first
    has_constant = first.const is not NO_CONSTANT
    if (not selector and all(value == first for value in others)) or (
        has_constant and all(_same_constant(value.const, first.const) for value in others)
    ):
        return first
    if first.objects and isinstance(first.objects[0], HeapFacts):
        return _join_facts(candidates, selector)
    items = _join_items(candidates, selector) if first.items is not None else None
    lengths = [value.length for value in candidates]
    element_length = merge_taint(*[value.element_length for value in candidates])
    if selector and items is None:
        has_items = any(value.items is not None for value in candidates)
        lengths.append(selector if has_items or element_length or any(lengths) else ())
    homes = [home for value in candidates for home in value.stored_in]
    return Value(
        content=merge_taint(*[value.content for value in candidates], selector),
        length=merge_taint(*lengths),
        order=_join_orders(candidates),
        element_length=element_length,
        absent=_join_absences(candidates, selector),
        known=all(value.known for value in candidates),
        objects=_join_objects(candidates, selector, with_items=items is None)[:MAX_OBJECTS],
        items=items,
        agreed=agreed and not selector,
        stored_in=tuple(dict.fromkeys(homes))[:MAX_OBJECTS],
        ragged=_join_ragged(candidates, selector),
    )


def _join_items(candidates: Sequence[Value], selector: Taint) -> tuple[Value, ...] | None:
    """Return the items of sequences of one length; None for others."""
    sizes = {len(value.items) if value.items is not None else None for value in candidates}
    if len(sizes) > 1 or None in sizes:
        return None
    columns = zip(*(value.items or () for value in candidates), strict=True)
    return tuple(join_values(column, selector) for column in columns)


def _join_ragged(candidates: Sequence[Value], selector: Taint) -> int:
    if selector and is_rank_only(selector):
        return CLAMPED  # the last rank has the rest
    return max([value.ragged for value in candidates])


def _join_orders(candidates: Sequence[Value]) -> Taint:
    """Return the taint of the order: weak where a value with a certain order is possible too."""
    merged = merge_taint(*[value.order for value in candidates])
    return (
        merged
        if not merged or all(value.order or value.items == () for value in candidates)
        else _weak(merged)
    )


def _join_absences(candidates: Sequence[Value], selector: Taint) -> Taint:
    """Return the taint of being None: weak where another object is not absent on any rank."""
    merged = merge_taint(*[value.absent for value in candidates])
    if merged and any(
        value.objects and not value.absent and NONE_OBJECT not in value.objects
        for value in candidates
    ):
        merged = _weak(merged)
    return merge_taint(merged, selector)


def _weak(sources: Taint) -> Taint:
    return tuple(source if source.weak else replace(source, weak=True) for source in sources)


def _join_objects(
    candidates: Sequence[Value], selector: Taint, *, with_items: bool
) -> tuple[Any, ...]:
    """Return the objects of all values, without those of single sites if there are many."""
    listed = [item for value in candidates for item in value.items or ()] if with_items else ()
    inner = [obj for item in listed for obj in item.objects if obj != NONE_OBJECT]
    own = [obj for value in candidates for obj in value.objects]
    objects = tuple(dict.fromkeys(own + inner))
    objects = _join_open_dicts(_join_dicts(objects, selector), selector)
    if len(objects) > MAX_OBJECTS:
        objects = _without_sites(objects)
    if (
        objects
        and not all(value.objects or value.const is None for value in candidates)
        and UNKNOWN_OBJECT not in objects
    ):
        objects = (*objects[: MAX_OBJECTS - 1], UNKNOWN_OBJECT)
    if not selector or not is_rank_only(selector):
        return objects
    types = {type(value.const) for value in candidates}
    return (NumberTypes(selector), *objects) if len(types) > 1 and types <= _NUMBERS else objects


def _without_sites(objects: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the objects, with those of a class as one."""
    return tuple(
        dict.fromkeys(
            replace(obj, site=0) if isinstance(obj, SitedObject) else obj for obj in objects
        )
    )


def _join_facts(candidates: list[Value], selector: Taint) -> Value:
    """Return the facts that hold on all paths, tainted by the test if it differs."""
    first, *others = [value.objects[0].facts for value in candidates]
    joined = {
        key: join_values([first[key], *(facts[key] for facts in others)], selector)
        for key in first
        if all(key in facts for facts in others)
    }
    return Value(objects=(HeapFacts(joined),))


def _join_dicts(objects: tuple[Any, ...], selector: Taint) -> tuple[Any, ...]:
    """Merge several dicts into one with the keys of all."""
    dicts = [obj.entries for obj in objects if isinstance(obj, DictEntries)]
    if len(dicts) < 2:
        return objects
    entries: dict[str, Value] = {}
    for name in dict.fromkeys(name for named in dicts for name in named):
        value = join_values([named[name] for named in dicts if name in named], selector)
        if not all(name in named for named in dicts):
            perhaps = (*(value.objects or (UNKNOWN_OBJECT,)), NONE_OBJECT)
            value = msgspec.structs.replace(
                taint_value(value, selector), absent=persistent_taint(selector), objects=perhaps
            )
        entries[name] = value
    return (dict_of(entries), *(obj for obj in objects if not isinstance(obj, DictEntries)))


def _join_open_dicts(objects: tuple[Any, ...], selector: Taint) -> tuple[Any, ...]:
    """Merge dicts of which some entries are known into one."""
    dicts = [obj for obj in objects if isinstance(obj, OpenDict)]
    if len(dicts) < 2:
        return objects
    names = dict.fromkeys(name for each in dicts for name in each.entries)
    entries = {
        name: join_values([each.entries.get(name, each.rest) for each in dicts], selector)
        for name in names
    }
    rest = join_values([each.rest for each in dicts])
    return (open_dict_of(entries, rest), *(obj for obj in objects if not isinstance(obj, OpenDict)))


def dict_of(entries: dict[str, Value]) -> DictEntries:
    """Return a dict with these entries; below a few levels, those of nested dicts are unknown."""
    return DictEntries(*_without_deep_entries(entries))


def open_dict_of(entries: dict[str, Value], rest: Value) -> OpenDict:
    """Return a dict of which these entries are known, as :func:`dict_of`."""
    entries, depth = _without_deep_entries(entries)
    return OpenDict(entries, rest, depth)


def _without_deep_entries(entries: dict[str, Value]) -> tuple[dict[str, Value], int]:
    """Return the entries without those of deeply nested dicts, and how deeply they are nested."""
    depths = {name: _nesting(value) for name, value in entries.items() if value.objects}
    depth = 1 + max(depths.values(), default=0)
    if depth <= _MAX_NESTING:
        return entries, depth
    shallow = {
        name: _without_entries(value) if depths.get(name, 0) >= _MAX_NESTING else value
        for name, value in entries.items()
    }
    return shallow, _MAX_NESTING


def _nesting(value: Value) -> int:
    return max((obj.depth for obj in value.objects if isinstance(obj, DICTS)), default=0)


def _without_entries(value: Value) -> Value:
    others = dict.fromkeys(obj for obj in value.objects if not isinstance(obj, DICTS))
    objects = tuple(others | {UNKNOWN_OBJECT: None})
    return msgspec.structs.replace(value, objects=objects)


def _same_constant(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def combine_values(*values: Value) -> Value:
    """Return the result of an operation on values, tainted like them."""
    ragged = max([value.ragged for value in values], default=0)
    if not ragged and not any(
        value.content or value.length or value.order or value.element_length for value in values
    ):
        return UNIFORM if all(value.known for value in values) else UNKNOWN
    return Value(
        content=merge_content(values),
        length=merge_length(values),
        order=merge_taint(*(value.order for value in values)),
        element_length=merge_taint(*(value.element_length for value in values)),
        known=all(value.known for value in values),
        ragged=ragged,
    )


def taint_value(value: Value, control: Taint) -> Value:
    """Return a value tainted by the condition under which it was assigned."""
    control = persistent_taint(control)
    if not control:
        return value
    return msgspec.structs.replace(
        value,
        content=merge_taint(value.content, control),
        absent=merge_taint(value.absent, control),
        items=value.items and tuple(taint_value(item, control) for item in value.items),
        agreed=False,
        const=NO_CONSTANT,
    )


def taint_kinds(sources: Taint, none: frozenset[TaintKind] = frozenset()) -> frozenset[TaintKind]:
    """Return the kinds of the sources."""
    return frozenset([source.kind for source in sources]) if sources else none


def is_rank_only(sources: Taint) -> bool:
    """Return True if the taint depends on nothing but the rank."""
    return taint_kinds(sources) <= RANK_OR_SELECTED
