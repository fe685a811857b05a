"""What containers hold: one element of an iterable, and rank-local data in a list."""

from __future__ import annotations

import re

import msgspec

from holdfast.lint.abstract_domain.values import (
    UNKNOWN,
    NumberTypes,
    TaintKind,
    Value,
    join_values,
    merge_taint,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    SHARD,
    ClassObject,
    FunctionObject,
    GroupNumber,
    GuardedCallable,
    Instance,
    LibraryInstance,
    LibraryMethod,
    join_rows,
)

#: Marks a list that holds rank-local data; ``wrapped`` has the value of its elements.
HELD = "held"


#: The parts of a list or tensor, as ``split`` returns them.
PIECES = LibraryInstance("pieces")


def held_data(value: Value) -> tuple[LibraryInstance, ...]:
    """Return the mark of a list to which rank-local data are added; the list is never emptier.

    Tests of a list usually ask for emptiness, which the data do not decide.
    """
    data = tuple(source for source in value.content if source.kind is TaintKind.DATA)
    batch = (BATCH,) if BATCH in value.objects else ()
    if not data and not batch:
        return tuple(obj for obj in value.objects_of(LibraryInstance) if obj.name == HELD)
    return (LibraryInstance(HELD, Value(data, known=False, objects=batch)),)


def with_held_data(value: Value) -> Value:
    """Return a list with the data that it holds, as its sum or one of its elements has them."""
    held = [obj for obj in value.objects_of(LibraryInstance) if obj.name == HELD]
    if not held:
        return value
    inner = [mark.wrapped for mark in held if mark.wrapped is not None]
    return msgspec.structs.replace(
        value,
        content=merge_taint(value.content, *(item.content for item in inner)),
        known=False,
        objects=tuple(
            dict.fromkeys(
                [obj for obj in value.objects if obj not in held]
                + [obj for item in inner for obj in item.objects]
            )
        ),
    )


def element_of(over: Value) -> Value:
    """Return one element of an iterable."""
    if over.items:
        return join_values(over.items)
    over = with_held_data(over)
    several = join_rows(over)
    if several is not None:
        return several
    if any(
        isinstance(candidate, LibraryInstance) and candidate.name == "loader"
        for candidate in over.objects
    ):
        return Value(known=False, objects=(BATCH,) if _has_distributed_sampler(over) else ())
    objects = tuple(
        obj
        for obj in over.objects
        if isinstance(obj, (Instance, FunctionObject, ClassObject, GuardedCallable, NumberTypes))
        or obj in (BATCH, SHARD)
    )
    objects += tuple(
        msgspec.structs.replace(obj, kind="position")
        for obj in over.objects_of(GroupNumber)
        if obj.kind == "positions"
    )
    if any(isinstance(obj, LibraryInstance) and obj.name == "wrapped:fsdp" for obj in over.objects):
        objects = (*objects, SHARD)  # one of its parameters
    return Value(
        over.content,
        over.element_length,
        over.order if PIECES in over.objects else (),  # each has a part of the order
        known=over.known,
        stored_in=over.stored_in,
        objects=objects,
        agreed=over.agreed,
    )


_LOADER_NAME = re.compile(r"(?:^|_)(?:data_?)?loader$|dataloader$", re.IGNORECASE)


_ASSUMED_SAMPLER = LibraryInstance("sampler:assumed")
_NAMED_LOADER = Value(
    known=False,
    objects=(LibraryInstance("loader", Value(objects=(_ASSUMED_SAMPLER,))),),
)


def named_loader(name: str, value: Value = UNKNOWN) -> Value | None:
    """Return the value of what is unknown but called a loader: each rank has its own batches."""
    if "oader" not in name or value.known or value.objects or value.content or value.length:
        return None
    return _NAMED_LOADER if value.items is None and _LOADER_NAME.search(name) else None


def is_whole_data_set(value: Value) -> bool:
    """Return True for ``loader.dataset`` of a loader whose sampler gives the rank its share."""
    return any(
        obj.name == "dataset"
        and obj.owner is not None
        and obj.receiver != _NAMED_LOADER
        and _has_distributed_sampler(obj.receiver)
        for obj in value.objects
        if isinstance(obj, LibraryMethod)
    )


def _has_distributed_sampler(over: Value) -> bool:
    """Return True if a sampler shards the data of a loader."""
    return any(
        sampler.name.startswith("sampler") and sampler.wrapped is None
        for loader in over.objects_of(LibraryInstance)
        if loader.name == "loader" and loader.wrapped is not None
        for sampler in loader.wrapped.objects_of(LibraryInstance)
    )
